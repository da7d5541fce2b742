package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/barque/barque/raftstore/kv"
)

func sample(n int) Source {
	return Source{
		Meta: Meta{Index: 9, Term: 2, Revision: uint64(n), Now: 5, Hash: 77, Items: uint64(n)},
		Items: func(yield func(kv.Item) bool) {
			for i := range n {
				item := kv.Item{
					Key: fmt.Sprintf("/k%08d", i), Value: bytes.Repeat([]byte{byte(i)}, i%2000),
					CreateRevision: 1, ModRevision: uint64(i + 1), Expires: int64(i % 2),
				}
				if !yield(item) {
					return
				}
			}
		},
		History: func(yield func(kv.Undo) bool) {
			for i := range n {
				u := kv.Undo{Revision: uint64(n - i), At: int64(-i),
					Before: []kv.Item{{Key: "/absent", Value: []byte{}}}}
				for k := range i % 3 {
					u.Before = append(u.Before,
						kv.Item{Key: fmt.Sprint(k), Value: make([]byte, i%50), CreateRevision: 1, ModRevision: 2})
				}
				if !yield(u) {
					return
				}
			}
		},
		Sessions: []Session{{Origin: 1, Done: 4, Seen: 8, Answers: []Answer{{4, 1}, {6, 2}}}, {Origin: 2}},
	}
}

func encode(t testing.TB, src Source) []byte {
	var b bytes.Buffer
	if err := Write(&b, src); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func read(data []byte) (meta Meta, items []kv.Item, sessions []Session, err error) {
	meta, items, sessions, _, _, err = readAll(data)
	return meta, items, sessions, err
}

func readAll(
	data []byte,
) (meta Meta, items []kv.Item, sessions []Session, staging *Staging, staged []kv.Item, err error) {
	r, err := NewReader(bytes.NewReader(data))
	if err != nil {
		return meta, nil, nil, nil, nil, err
	}
	defer r.Close()
	if err = r.Items(func(item *kv.Item) { items = append(items, *item) }); err == nil {
		sessions, staging, err = r.Rest(func(item *kv.Item) { staged = append(staged, *item) })
	}
	return r.Meta(), items, sessions, staging, staged, err
}

// stage makes the source one with a restore in its middle that has these items.
func (src *Source) stage(items []kv.Item) {
	src.Staging = &Staging{ID: 1 << 60, Seq: 3, Sum: 9, Bytes: 10, Touched: -1, Items: uint64(len(items))}
	src.Staged = func(yield func(kv.Item) bool) {
		for _, item := range items {
			if !yield(item) {
				return
			}
		}
	}
}

// TestRestoreInItsMiddle writes the items that a restore has put aside, too.
func TestRestoreInItsMiddle(t *testing.T) {
	for _, n := range []int{0, 2, 2000} {
		src := sample(3)
		var want []kv.Item
		for i := range n {
			want = append(want, kv.Item{Key: fmt.Sprintf("%05d", i), Value: bytes.Repeat([]byte{byte(i)}, i)})
		}
		src.stage(want)
		data := encode(t, src)
		_, items, _, staging, staged, err := readAll(data)
		if err != nil || len(items) != 3 || !reflect.DeepEqual(staging, src.Staging) ||
			!reflect.DeepEqual(staged, want) {
			t.Errorf("%d items aside: %+v, %d items, %v", n, staging, len(staged), err)
		}
		if n == 2 {
			for i := range data {
				bad := bytes.Clone(data)
				bad[i] ^= 1
				if _, _, _, _, _, err := readAll(bad); err == nil {
					t.Errorf("a flipped bit in byte %d was not found", i)
				}
			}
		}
	}
	src := sample(3)
	src.stage([]kv.Item{{Key: "b"}, {Key: "a"}})
	if _, _, _, _, _, err := readAll(encode(t, src)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("keys that do not ascend: %v", err)
	}
	src.Staging.Items++
	src.Staged = func(yield func(kv.Item) bool) { yield(kv.Item{Key: "a"}) }
	if _, _, _, _, _, err := readAll(encode(t, src)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("too few items: %v", err)
	}
}

func TestRoundTrip(t *testing.T) {
	for _, n := range []int{0, 1, 3000} {
		src := sample(n)
		meta, items, sessions, err := read(encode(t, src))
		if err != nil || meta != src.Meta || !reflect.DeepEqual(sessions, src.Sessions) || len(items) != n {
			t.Fatalf("%d items: %+v, %d items, %+v, %v", n, meta, len(items), sessions, err)
		}
		i := 0
		src.Items(func(want kv.Item) bool {
			if !bytes.Equal(items[i].Value, want.Value) || items[i].Key != want.Key ||
				items[i].Expires != want.Expires {
				t.Fatalf("item %d is %+v", i, items[i])
			}
			i++
			return true
		})
	}
}

func TestHistoryRoundTrip(t *testing.T) {
	src := sample(2000)
	var want, got []kv.Undo
	src.History(func(u kv.Undo) bool { want = append(want, u); return true })
	r, err := NewReader(bytes.NewReader(encode(t, src)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Items(func(*kv.Item) {}); err != nil {
		t.Fatal(err)
	}
	err = r.History(func(u kv.Undo) error {
		for i := range u.Before {
			u.Before[i].Value = bytes.Clone(u.Before[i].Value)
		}
		got = append(got, u)
		return nil
	})
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%d steps, %v; want %d", len(got), err, len(want))
	}
	if _, _, err := r.Rest(func(*kv.Item) {}); err != nil {
		t.Error(err)
	}
	refused := errors.New("refused")
	r, err = NewReader(bytes.NewReader(encode(t, src)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Items(func(*kv.Item) {}); err != nil {
		t.Fatal(err)
	}
	if err := r.History(func(kv.Undo) error { return refused }); !errors.Is(err, refused) ||
		!errors.Is(err, ErrCorrupt) {
		t.Errorf("a step that does not fit: %v", err)
	}
}

func TestDamageIsFound(t *testing.T) {
	good := encode(t, sample(300))
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 0x10
		if _, _, _, err := read(bad); !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
			t.Fatalf("a flipped bit in byte %d of %d: %v", i, len(good), err)
		}
	}
	for i := range good {
		if _, _, _, err := read(good[:i]); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("cut after byte %d of %d: %v", i, len(good), err)
		}
	}
	src := sample(3)
	src.Meta.Items = 4
	if _, _, _, err := read(encode(t, src)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a wrong number of items: %v", err)
	}
}

func FuzzReader(f *testing.F) {
	f.Add(encode(f, sample(3)))
	f.Add(encode(f, sample(0)))
	f.Add([]byte(magic + "\x01\x00\x00\x00\x01\xff\xff\xff\x7f\xff\xff\xff\x7f"))
	f.Fuzz(func(t *testing.T, data []byte) { read(data) })
}
