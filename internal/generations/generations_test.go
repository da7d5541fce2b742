package generations

import (
	"maps"
	"math/rand/v2"
	"testing"
)

func want(t *testing.T, m *Map[int, string], key int, value string) {
	t.Helper()
	if got, found := m.Get(key); !found || got != value {
		t.Fatalf("%d: %q, %v; want %q", key, got, found, value)
	}
}

func wantNone(t *testing.T, m *Map[int, string], key int) {
	t.Helper()
	if got, found := m.Get(key); found || got != "" {
		t.Fatalf("%d is there: %q", key, got)
	}
}

// size returns the number of entries.
func size(m *Map[int, string]) (n int) {
	for range m.All() {
		n++
	}
	return n
}

// TestWhatIsAskedForStays: one entry is used all the time, the others never again.
func TestWhatIsAskedForStays(t *testing.T) {
	m := New[int, string](1000)
	m.Put(-1, "asked for", 10)
	for i := range 1000 {
		m.Put(i, "left", 10)
		want(t, m, -1, "asked for")
		want(t, m, i, "left")
	}
	wantNone(t, m, 0)
	if n := size(m); n < 50 || n > 100 {
		t.Errorf("%d entries are kept", n)
	}
}

// TestTheRoomIsForEntries: a generation is full when its entries cost half of the room.
func TestTheRoomIsForEntries(t *testing.T) {
	for _, c := range []struct{ room, cost int }{{1000, 10}, {100, 1}, {100, 0}} {
		m := New[int, string](c.room)
		for i := range 100 {
			m.Put(i, "two generations", c.cost)
		}
		if n := size(m); n != 100 {
			t.Errorf("%+v: %d entries are kept in two generations", c, n)
		}
		if m.Put(100, "a third one", c.cost); size(m) != 51 {
			t.Errorf("%+v: %d entries are kept when a third one begins", c, size(m))
		}
	}
}

// TestAge: entries that were used since the last Age stay.
func TestAge(t *testing.T) {
	m := New[int, string](1000)
	for i := range 3 {
		m.Put(i, "new", 10)
	}
	for range 3 {
		want(t, m, 0, "new")
		if got, found := m.Peek(1); found != (size(m) == 3) {
			t.Errorf("with %d entries there is %q, %v", size(m), got, found)
		}
		m.Age()
	}
	want(t, m, 0, "new")
	wantNone(t, m, 1) // a peek does not keep it
	wantNone(t, m, 2)
	if n := size(m); n != 1 {
		t.Errorf("%d entries are kept", n)
	}
}

// TestWhatCostsTooMuch: an entry that costs too much is not kept, nor is the entry that it
// replaces.
func TestWhatCostsTooMuch(t *testing.T) {
	m := New[int, string](1000)
	m.Put(1, "other", 500)
	m.Put(2, "small", 10)
	m.Put(2, "too large", 501)
	wantNone(t, m, 2)
	want(t, m, 1, "other")
}

func TestAllMayEndEarly(t *testing.T) {
	m := New[int, string](1000)
	m.Put(1, "old", 1)
	m.Age()
	m.Put(2, "young", 1)
	for key, value := range m.All() {
		if key != 2 || value != "young" {
			t.Errorf("%d: %q comes first", key, value)
		}
		break
	}
}

// TestItAgreesWithAModel makes 20,000 random calls. The map's entries are the last ones put, their
// cost is right, and it never exceeds the room.
func TestItAgreesWithAModel(t *testing.T) {
	const room = 10_000
	type put struct {
		value string
		cost  int
	}
	m, all := New[int, string](room), map[int]put{}
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		key := random.IntN(300)
		switch random.IntN(20) {
		case 0:
			m.Remove(key)
			delete(all, key)
		case 1:
			if random.IntN(50) == 0 {
				m.Age()
			}
		case 2, 3, 4, 5:
			p := put{string(rune('a' + random.IntN(26))), 1 + random.IntN(200)}
			m.Put(key, p.value, p.cost)
			all[key] = p
		default:
			peeked, there := m.Peek(key)
			got, found := m.Get(key)
			if found != there || got != peeked {
				t.Fatalf("a peek shows %q, %v, and a get %q, %v", peeked, there, got, found)
			}
			if found && got != all[key].value {
				t.Fatalf("%d: %q, and it was set to %q", key, got, all[key].value)
			}
		}
		entries := maps.Collect(m.All())
		cost, young := 0, 0
		for key, value := range entries {
			p, put := all[key]
			if !put || value != p.value {
				t.Fatalf("%d: %q, and it was set to %q, %v", key, value, p.value, put)
			}
			cost += p.cost
			if _, found := m.young[key]; found {
				young += p.cost
			}
		}
		if len(entries) != size(m) || young != m.cost || cost > room {
			t.Fatalf("%d entries, %d different ones, cost %d, the young ones %d; it counts %d",
				size(m), len(entries), cost, young, m.cost)
		}
	}
}
