package check

import (
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/internal/history"
	"github.com/barque/barque/internal/linear"
	"github.com/barque/barque/raftstore"
)

// Beside the verdict by the history, package linear looks for an order of the operations that
// explains the clients' answers about keys and values. It is given no revisions. Keys whose
// transactions go together are one group: each key below /m/<n>/ belongs to the group /m/<n>/, and
// any other is its own. Keys that expire are left out.

// group returns the group of a key, "" when there is none.
func group(key string) string {
	switch parts := strings.Split(key, "/"); {
	case len(parts) > 3 && parts[1] == "m":
		return strings.Join(parts[:3], "/")
	case len(parts) < 2 || parts[1] == "t" || parts[0] != "":
		return "" // it expires, or is the store's own
	}
	return key
}

// searchTime is how long an order is looked for. It takes a second.
const searchTime = 2 * time.Minute

func (j *judge) ordered() {
	if err := linear.Check(j.operations(), searchTime); errors.Is(err, linear.ErrUndecided) {
		j.Violated(history.Linearizes, "not judged: %v", err)
	} else if err != nil {
		j.Violated(history.Linearizes, "%v", err)
	}
}

// Visualize writes an HTML page with the operations, as far as they can be ordered.
func (r *Record) Visualize(w io.Writer) error {
	j := newJudge(r, Options{})
	return linear.Visualize(w, j.operations(), 10*time.Second)
}

// operations returns the operations to be ordered: one for each group that an operation touches. A
// write of unknown outcome that took effect has ended when the first server showed it; one that did
// not is left out, as it looks like one that took effect after everything else.
func (j *judge) operations() []linear.Operation {
	var ops []linear.Operation
	groups := make(map[string]bool)
	for _, w := range j.writes {
		if o := j.written(w); o.Group != "" {
			ops, groups[o.Group] = append(ops, o), true
		}
	}
	for _, r := range j.reads {
		if r.Kind != Linearizable {
			continue
		}
		contents := make(map[string]map[string]linear.Item)
		for g := range groups {
			contents[g] = make(map[string]linear.Item)
		}
		for _, item := range r.Items {
			if content := contents[group(item.Key)]; content != nil {
				content[item.Key] = linear.Item{Exists: true, Value: item.Value}
			}
		}
		for _, g := range slices.Sorted(maps.Keys(groups)) {
			ops = append(ops,
				linear.Operation{Client: r.Client, Group: g, Call: r.Call, Return: r.Return, Read: contents[g]})
		}
	}
	return ops
}

// written is a write as it is to be ordered; of no group when it is not.
func (j *judge) written(w *Write) linear.Operation {
	o := linear.Operation{Client: w.Client, Call: w.Call, Return: w.Return, Require: make(map[string]linear.Item),
		Put: make(map[string]string)}
	switch {
	case w.Outcome == Unknown && w.effect() != 0:
		o.Return = max(w.Call, j.seen[w.effect()])
	case w.Outcome == Conflicted:
		o.Outcome, o.Found = linear.Conflict, map[string]linear.Item{w.Conflict.Key: {}}
		if w.Conflict.Current != nil {
			o.Found[w.Conflict.Key] = linear.Item{Exists: true, Value: string(w.Conflict.Current.Value)}
		}
	case w.Outcome != Done:
		return o
	}
	for _, p := range w.Txn.Require {
		o.Require[p.Key], o.Group = j.demanded(p), group(p.Key)
	}
	for _, op := range w.Txn.Ops {
		o.Group = group(op.Key)
		if op.Kind == raftstore.Put {
			o.Put[op.Key] = string(op.Value)
		} else {
			o.Delete = append(o.Delete, op.Key)
		}
	}
	return o
}

// demanded is the item that a precondition wants: it names a revision, for which the value stands
// that the key got then.
func (j *judge) demanded(p raftstore.Precondition) linear.Item {
	if p.ModRevision == 0 {
		return linear.Item{}
	}
	demanded := linear.Item{Exists: true}
	if item, _ := j.At(p.Key, p.ModRevision); item.Revision == p.ModRevision {
		demanded.Value = item.Value
	}
	return demanded
}
