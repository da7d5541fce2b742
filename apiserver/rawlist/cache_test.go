package rawlist

import "testing"

func TestWhatNobodyLooksAtIsForgotten(t *testing.T) {
	cache := NewCache(1 << 20)
	wanted, left := entry{key: 1, revision: 7}, entry{key: 2, revision: 7}
	cache.put(wanted, []byte("sent"))
	cache.put(left, nil)
	for range 3 {
		if data, known := cache.get(wanted); !known || string(data) != "sent" {
			t.Fatal("what was looked at since is gone")
		}
		cache.Age()
	}
	if _, known := cache.get(left); known {
		t.Error("what nobody has looked at is kept")
	}
}
