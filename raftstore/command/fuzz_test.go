package command

import (
	"reflect"
	"testing"

	"github.com/barque/barque/raftstore/kv"
)

// FuzzDecodeRequest reads a request that another server forwards.
func FuzzDecodeRequest(f *testing.F) {
	for _, r := range sample().Requests {
		f.Add(AppendRequest(nil, &r))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := DecodeRequest(data)
		if err != nil {
			return
		}
		if size := len(AppendRequest(nil, &r)); size > SizeOf(&r) {
			t.Fatalf("%d bytes, and SizeOf says %d", size, SizeOf(&r))
		}
		again, err := DecodeRequest(AppendRequest(nil, &r))
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Fatalf("%+v became %+v, %v", r, again, err)
		}
	})
}

// FuzzDecodeItem reads items one after the other, as snapshots and backups have them.
func FuzzDecodeItem(f *testing.F) {
	item := kv.Item{Key: "/a", Value: []byte("v"), CreateRevision: 1, ModRevision: 3, Expires: 5}
	f.Add(AppendItem(AppendItem(nil, &item), &item))
	f.Fuzz(func(t *testing.T, data []byte) {
		for rest := data; len(rest) > 0; {
			item, after, err := DecodeItem(rest)
			if err != nil {
				return
			}
			if len(after) >= len(rest) {
				t.Fatal("an item without bytes")
			}
			rest = after
			again, none, err := DecodeItem(AppendItem(nil, &item))
			if err != nil || len(none) > 0 || !reflect.DeepEqual(again, item) {
				t.Fatalf("%+v became %+v, %v", item, again, err)
			}
		}
	})
}

// FuzzDecodeOutcome reads the answer of another server.
func FuzzDecodeOutcome(f *testing.F) {
	f.Add(AppendOutcome(nil, &Outcome{Code: Applied, Revision: 7}))
	f.Add(
		AppendOutcome(nil,
			&Outcome{Code: Conflict, Revision: 7, Key: "/a",
				Current: &kv.Item{Key: "/a", Value: []byte("v"), ModRevision: 3, Expires: -1}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := DecodeOutcome(data)
		if err != nil {
			return
		}
		again, err := DecodeOutcome(AppendOutcome(nil, &o))
		if err != nil || again.Code != o.Code || again.Revision != o.Revision || again.Key != o.Key ||
			(again.Current == nil) != (o.Current == nil) {
			t.Fatalf("%+v became %+v: %v", o, again, err)
		}
	})
}
