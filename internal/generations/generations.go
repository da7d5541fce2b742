// Package generations has a map that is bounded by the cost of its entries.
//
// It forgets about the least recently used entries. There are two generations: new and used entries
// are in the young one. When that has no room for another entry, half of the total, it becomes the
// old one. The previous old one is dropped as a whole. An entry that is used again before that
// moves to the young one.
//
// An LRU list would be exact. It takes two pointers per entry, which the garbage collector visits,
// and a write for each lookup. A lookup here writes only when it moves an entry to the young
// generation.
package generations

import "iter"

// Map has values with a cost, mostly in bytes. It has no lock: callers must serialize all calls,
// Get too.
type Map[K comparable, V any] struct {
	room       int // of a generation
	young, old map[K]item[V]
	cost       int // of young
}

type item[V any] struct {
	value V
	cost  int
}

// New makes a Map with a limit for the cost of all its entries.
func New[K comparable, V any](room int) *Map[K, V] {
	return &Map[K, V]{room: room / 2, young: make(map[K]item[V])}
}

// Get returns the value of a key, which keeps it for another generation.
func (m *Map[K, V]) Get(key K) (value V, found bool) {
	it, found := m.young[key]
	if found {
		return it.value, true
	}
	if it, found = m.old[key]; found {
		delete(m.old, key)
		m.add(key, it)
	}
	return it.value, found
}

// Peek returns the value of a key, without counting as a use.
func (m *Map[K, V]) Peek(key K) (value V, found bool) {
	it, found := m.young[key]
	if !found {
		it, found = m.old[key]
	}
	return it.value, found
}

// Put sets the value of a key. The cost is at least 1. An entry that costs more than half of the
// room is not kept, because it would push out all others.
func (m *Map[K, V]) Put(key K, value V, cost int) {
	m.Remove(key)
	if cost = max(cost, 1); cost <= m.room {
		m.add(key, item[V]{value, cost})
	}
}

// add puts a new entry into the young generation.
func (m *Map[K, V]) add(key K, it item[V]) {
	if m.cost+it.cost > m.room {
		m.Age()
	}
	m.young[key] = it
	m.cost += it.cost
}

// Remove takes out the entry of a key, if there is one.
func (m *Map[K, V]) Remove(key K) {
	if it, found := m.young[key]; found {
		m.cost -= it.cost
		delete(m.young, key)
	}
	delete(m.old, key)
}

// Age begins a new generation, and forgets entries that were not used in the last one. It is for a
// program with little work, which would keep its last entries for ever.
func (m *Map[K, V]) Age() { m.old, m.young, m.cost = m.young, make(map[K]item[V]), 0 }

// All iterates over all entries, in no order, without counting as a use.
func (m *Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for _, generation := range []map[K]item[V]{m.young, m.old} {
			for key, it := range generation {
				if !yield(key, it.value) {
					return
				}
			}
		}
	}
}
