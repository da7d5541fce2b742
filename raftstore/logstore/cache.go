package logstore

import (
	"sync"

	"github.com/hashicorp/raft"
)

// Cache keeps the newest entries of the log in memory. Raft reads each entry again. The leader
// reads it for every follower, to send it and to get the term of its predecessor, and a follower
// reads it to apply it. From disk each read would decode the whole entry.
//
// It holds a range without gaps that ends with the newest entry, and only entries on disk.
type Cache struct {
	raft.LogStore
	limit int

	mu      sync.RWMutex
	first   uint64 // index of entries[0]
	entries []raft.Log
	bytes   int
}

// NewCache returns a cache over the log that holds the data of so many bytes.
func NewCache(log raft.LogStore, limit int) *Cache { return &Cache{LogStore: log, limit: limit} }

// IsMonotonic implements raft.MonotonicLogStore, as the log below does.
func (c *Cache) IsMonotonic() bool {
	m, ok := c.LogStore.(raft.MonotonicLogStore)
	return ok && m.IsMonotonic()
}

// StoreLog implements raft.LogStore.
func (c *Cache) StoreLog(entry *raft.Log) error { return c.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore.
func (c *Cache) StoreLogs(entries []*raft.Log) error {
	if err := c.LogStore.StoreLogs(entries); err != nil {
		c.reset() // the state of the disk is unknown now
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		if e.Index != c.first+uint64(len(c.entries)) {
			c.clear()
			c.first = e.Index
		}
		c.entries = append(c.entries, *e)
		c.bytes += len(e.Data)
	}
	c.shrink()
	return nil
}

// shrink drops the oldest entries while there are too many. The caller holds the lock.
func (c *Cache) shrink() {
	n := 0
	for ; c.bytes > c.limit || len(c.entries)-n > cacheEntries; n++ {
		c.bytes -= len(c.entries[n].Data)
		c.entries[n] = raft.Log{} // releases its data
	}
	c.first += uint64(n)
	c.entries = c.entries[n:]
}

// cacheEntries bounds the number of entries, each of which has a cost beyond its data.
const cacheEntries = 1024

// GetLog implements raft.LogStore. The data is shared: an entry's data never changes.
func (c *Cache) GetLog(index uint64, log *raft.Log) error {
	c.mu.RLock()
	if i := index - c.first; index >= c.first && i < uint64(len(c.entries)) {
		*log = c.entries[i]
		c.mu.RUnlock()
		return nil
	}
	c.mu.RUnlock()
	return c.LogStore.GetLog(index, log)
}

// DeleteRange implements raft.LogStore.
func (c *Cache) DeleteRange(from, to uint64) error {
	c.drop(from, to)
	return c.LogStore.DeleteRange(from, to)
}

// drop forgets the range: its front if the range ends within the cache, otherwise everything from
// the range on, as after a replacement of the log's end.
func (c *Cache) drop(from, to uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	end := c.first + uint64(len(c.entries))
	switch {
	case to < c.first || from >= end:
	case from <= c.first && to < end-1:
		for c.first <= to {
			c.bytes -= len(c.entries[0].Data)
			c.entries[0] = raft.Log{}
			c.entries = c.entries[1:]
			c.first++
		}
	default:
		c.clear()
	}
}

func (c *Cache) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clear()
}

// clear is called with the lock held.
func (c *Cache) clear() { c.first, c.entries, c.bytes = 0, nil, 0 }
