"""The large memory of a rank, which it can give back while it sleeps: the key-value cache and the weights."""

from __future__ import annotations

from collections.abc import Collection

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.model.cache import KVCache
from engine.model.llama import Llama

KV_CACHE, WEIGHTS = "kv_cache", "weights"
TAGS = (KV_CACHE, WEIGHTS)
"""What can be given back, by name."""

LEVELS = {1: (KV_CACHE,), 2: TAGS}
"""What each level of sleep gives back."""


class Memory:
    """All there at first."""

    def __init__(self, model: Llama, config: EngineConfig) -> None:
        self._model = model
        self._config = config
        self._cache: KVCache | None = self._new_cache()
        self._loaded = True

    @property
    def model(self) -> Llama:
        """The model, whose weights may be missing."""
        return self._model

    @property
    def cache(self) -> KVCache:
        """The cache. Raises :class:`EngineError` while it is given back."""
        if self._cache is None:
            raise EngineError("the key-value cache is given back; nothing can be computed")
        return self._cache

    @property
    def missing(self) -> list[str]:
        """What is given back, of :data:`TAGS`."""
        there = {KV_CACHE: self._cache is not None, WEIGHTS: self._loaded}
        return [tag for tag in TAGS if not there[tag]]

    def release(self, tags: Collection[str]) -> None:
        """Give these back, as far as they are there. What the cache held is lost."""
        for tag in tags:
            if tag == KV_CACHE:
                self._cache = None
            elif self._loaded:
                self._loaded = False
                self._model.unload()

    def restore(self, tags: Collection[str]) -> None:
        """Make these again, as far as they are missing: an empty cache, the same weights."""
        for tag in tags:
            if tag == KV_CACHE:
                self._cache = self._cache or self._new_cache()
            elif not self._loaded:
                self._model.load()
                self._loaded = True

    def bytes(self) -> dict[str, int]:
        """How much each takes; 0 while it is given back."""
        weights = sum(tensor.nbytes for tensor in self._model.tensors()) if self._loaded else 0
        return {WEIGHTS: weights, KV_CACHE: 0 if self._cache is None else self._cache.buffer.nbytes}

    def _new_cache(self) -> KVCache:
        return self._model.new_cache(self._config.num_pages, self._config.page_size)
