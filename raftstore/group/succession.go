package group

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/mvcc"
)

// A cluster gets a new identity when it is made from the rest of another one: by a forced recovery
// of one server, or from a backup. The new cluster is the successor, the other one its predecessor.
// Servers of both have certificates of one CA, so a majority of the predecessor's servers could
// come back and serve the old state beside the successor.
//
// The successor keeps the IDs of its predecessors in its replicated state, so all of its members
// know them. It informs a predecessor's server:
//
//	a server of the predecessor ──its greeting──▶ a server of the successor
//	                            ◀──refused: "cluster Y goes on in place of X"──
//
// That server is superseded. It serves nothing from then on, and its directory is marked, so a
// restart changes nothing. No evidence is weighed: the later cluster goes on, because an operator
// has decided so.
//
// A server believes only a server that it has called, at a member's address in its own cluster. So
// a copy of a disk that is recovered for a drill, at another address, stops no server.

// Succession is the replacement of a cluster by another one.
type Succession struct {
	Cluster string `json:"cluster"` // the predecessor
	// Successor is the ID of the cluster that replaces it. The name in JSON, in the state and on
	// disk, is that of earlier versions.
	Successor string `json:"heir"`
	By        string `json:"by"` // ID of the successor's first server
	// At is when the successor was made, by the clock of that server. It is for people.
	At time.Time `json:"at"`
}

// Survivor is the name of the successor's first server.
func (s Succession) Survivor() string { return NameOf(s.By) }

func (s Succession) String() string {
	return fmt.Sprintf("cluster %q goes on as cluster %q, which server %q began at %s", s.Cluster, s.Successor, s.By,
		s.At.Format(time.RFC3339))
}

// PredecessorPrefix is the prefix of the keys of a cluster's predecessors; the ID follows. Backups
// and restores leave them unchanged.
const PredecessorPrefix = kv.ReservedPrefix + "ancestors/"

// Op returns the operation that stores it in the successor's state.
func (s Succession) Op() (kv.Op, error) {
	value, err := json.Marshal(s)
	return kv.Op{Kind: kv.Put, Key: PredecessorPrefix + s.Cluster, Value: value}, err
}

// Predecessors returns the clusters that this one replaces.
func Predecessors(view *mvcc.View) []Succession {
	var all []Succession
	view.Ascend(PredecessorPrefix, "", func(item kv.Item) bool {
		s := Succession{Cluster: strings.TrimPrefix(item.Key, PredecessorPrefix)}
		if json.Unmarshal(item.Value, &s) == nil {
			all = append(all, s)
		}
		return true
	})
	return all
}

// SuccessionOf returns how a cluster became the successor of another one; nil where it is not.
func SuccessionOf(view *mvcc.View, successor, cluster string) *Succession {
	item, ok := view.Get(PredecessorPrefix + cluster)
	if !ok {
		return nil
	}
	s := new(Succession)
	if json.Unmarshal(item.Value, s) != nil || s.Cluster != cluster {
		return nil // a newer version may write a form that this one cannot read
	}
	s.Successor = successor // the recorded successor may have been replaced itself, by this one
	return s
}

// SupersededError is returned by Open for the directory of a server whose cluster has a successor.
type SupersededError struct {
	Dir string
	Succession
}

func (e *SupersededError) Error() string {
	return fmt.Sprintf(
		"%s, without this server, whose directory is %s: it must not serve the old state beside that. It can join again, as a new server, "+
			"with an empty directory; or, when that other cluster is given up for good, this directory is recovered itself",
		e.Succession, e.Dir)
}
