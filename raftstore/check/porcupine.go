package check

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/barque/barque/raftstore"
)

// Porcupine looks for an order of the operations that explains what the clients were told of keys and
// values. It knows nothing of revisions. Keys whose transactions go together are one group: each key below
// /m/<n>/ belongs to the group /m/<n>/, and any other is its own. Keys that expire are left out.

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

// operation is what porcupine sees as input.
type operation struct {
	require map[string]uint64
	ops     []raftstore.Op
	reads   bool
	group   string
}

// told is what porcupine sees as output.
type told struct {
	outcome  Outcome
	conflict string            // the key
	content  map[string]string // of a read: the group's keys and values; of a conflict: the one key's
}

func (j *judge) porcupine() {
	// A precondition names a revision; the value that the key had then stands for it.
	values := make(map[uint64]map[string]string)
	for r, h := range j.history {
		for _, e := range h.events {
			if e.Kind != raftstore.Deleted {
				if values[r] == nil {
					values[r] = make(map[string]string)
				}
				values[r][e.Item.Key] = string(e.Item.Value)
			}
		}
	}
	ops := j.operations()
	model := modelOf(values)
	switch result, _ := porcupine.CheckOperationsVerbose(model, ops, searchTime); result {
	case porcupine.Illegal:
		j.violated(Linearizes, "porcupine finds no order of %d operations", len(ops))
	case porcupine.Unknown:
		j.violated(Linearizes, "not judged: porcupine has not found an order of %d operations in %v, and they may have one", len(ops), searchTime)
	}
}

// searchTime is how long an order is looked for. It takes a second.
const searchTime = 2 * time.Minute

// Visualize writes an HTML page with the operations, as far as porcupine can order them.
func (r *Record) Visualize(w io.Writer) error {
	j := &judge{Record: r, history: make(map[uint64]*revision)}
	j.gather()
	j.explain()
	values := make(map[uint64]map[string]string)
	for r, h := range j.history {
		values[r] = make(map[string]string)
		for _, e := range h.events {
			if e.Kind != raftstore.Deleted {
				values[r][e.Item.Key] = string(e.Item.Value)
			}
		}
	}
	model := modelOf(values)
	_, info := porcupine.CheckOperationsVerbose(model, j.operations(), 10*time.Second)
	return porcupine.Visualize(model, info, w)
}

// operations returns what porcupine should order: one for each group that an operation touches. A write of
// unknown outcome that took effect has ended when the first server showed it; one that did not is left out,
// as nobody can tell it from one that took effect after everything else.
func (j *judge) operations() []porcupine.Operation {
	var ops []porcupine.Operation
	for _, w := range j.writes {
		out, end := told{outcome: w.Outcome}, w.Return
		switch {
		case w.Outcome == Unknown && w.effect != 0:
			end = max(w.Call, j.history[w.effect].seen)
		case w.Outcome == Conflicted:
			out.conflict, out.content = w.Conflict.Key, map[string]string{}
			if w.Conflict.Current != nil {
				out.content[w.Conflict.Key] = string(w.Conflict.Current.Value)
			}
		case w.Outcome != Done:
			continue
		}
		in := operation{require: make(map[string]uint64), ops: w.Txn.Ops}
		for _, p := range w.Txn.Require {
			in.require[p.Key], in.group = p.ModRevision, group(p.Key)
		}
		for _, op := range w.Txn.Ops {
			in.group = group(op.Key)
		}
		if in.group != "" {
			ops = append(ops, porcupine.Operation{ClientId: w.Client, Input: in, Call: w.Call, Output: out, Return: end})
		}
	}
	groups := make(map[string]bool)
	for _, op := range ops {
		groups[op.Input.(operation).group] = true
	}
	for _, r := range j.reads {
		if r.Kind != Linearizable {
			continue
		}
		contents := make(map[string]map[string]string)
		for _, item := range r.Items {
			if g := group(item.Key); contents[g] == nil {
				contents[g] = map[string]string{item.Key: string(item.Value)}
			} else {
				contents[g][item.Key] = string(item.Value)
			}
		}
		for g := range groups {
			ops = append(ops, porcupine.Operation{
				ClientId: r.Client, Input: operation{reads: true, group: g}, Call: r.Call,
				Output: told{content: contents[g]}, Return: r.Return,
			})
		}
	}
	return ops
}

// modelOf returns the model: the state of a group is its keys and values, as text.
func modelOf(values map[uint64]map[string]string) porcupine.Model {
	return porcupine.Model{
		Partition: func(ops []porcupine.Operation) [][]porcupine.Operation {
			byGroup := make(map[string][]porcupine.Operation)
			for _, op := range ops {
				g := op.Input.(operation).group
				byGroup[g] = append(byGroup[g], op)
			}
			var parts [][]porcupine.Operation
			for _, part := range byGroup {
				parts = append(parts, part)
			}
			return parts
		},
		Init: func() any { return "" },
		Step: func(state, input, output any) (bool, any) {
			return take(state.(string), input.(operation), output.(told), values)
		},
		DescribeOperation: func(input, output any) string {
			in, out := input.(operation), output.(told)
			if in.reads {
				return "read " + encode(out.content)
			}
			text := out.outcome.String()
			for _, op := range in.ops {
				text += fmt.Sprintf(" %s=%s", op.Key, op.Value)
			}
			return text
		},
		DescribeState: func(state any) string { return state.(string) },
	}
}

func take(state string, in operation, out told, values map[uint64]map[string]string) (bool, any) {
	if in.reads {
		return state == encode(out.content), state
	}
	content := decode(state)
	holds := true
	for key, revision := range in.require {
		is, exists := content[key]
		holds = holds && exists == (revision != 0) && (!exists || is == values[revision][key])
	}
	if out.outcome == Conflicted {
		is, exists := content[out.conflict]
		want, existed := out.content[out.conflict]
		return !holds && exists == existed && is == want, state
	}
	if !holds {
		return false, state
	}
	for _, op := range in.ops {
		if op.Kind == raftstore.Put {
			content[op.Key] = string(op.Value)
		} else {
			delete(content, op.Key)
		}
	}
	return true, encode(content)
}

func encode(content map[string]string) string {
	var parts []string
	for key, value := range content {
		parts = append(parts, key+"="+value)
	}
	slices.SortFunc(parts, cmp.Compare)
	return strings.Join(parts, " ")
}

func decode(state string) map[string]string {
	content := make(map[string]string)
	for part := range strings.FieldsSeq(state) {
		key, value, _ := strings.Cut(part, "=")
		content[key] = value
	}
	return content
}
