package check

import (
	"strings"

	"github.com/barque/barque/internal/history"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/kv"
)

// Values returns the recorded part of a value, which begins with the token of its write:
// see history.Item.
type Values func(value []byte) string

// whole keeps values whole. Each is of one write.
func whole(value []byte) string { return string(value) }

// item translates an item; nil is none. A value of the store itself is of no client's write.
func (v Values) item(i *raftstore.Item) history.Item {
	if i == nil {
		return history.Item{}
	}
	value := v(i.Value)
	if strings.HasPrefix(i.Key, kv.ReservedPrefix) {
		value = " " + value
	}
	return history.Item{Key: i.Key, Value: value, Revision: i.ModRevision, Created: i.CreateRevision,
		Expires: i.Expires}
}

func (v Values) items(all []raftstore.Item) []history.Item {
	items := make([]history.Item, len(all))
	for i := range all {
		items[i] = v.item(&all[i])
	}
	return items
}

func (v Values) events(all []raftstore.Event) []history.Event {
	kinds := [...]history.Kind{"?", history.Added, history.Modified, history.Deleted}
	events := make([]history.Event, len(all))
	for i, e := range all {
		events[i] = history.Event{Kind: kinds[e.Kind&3], Item: v.item(&e.Item), Prev: v.item(e.Prev),
			Had: e.Prev != nil}
	}
	return events
}
