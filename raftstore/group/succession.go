package group

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/mvcc"
)

// A cluster gets a new identity when it is made anew from what is left of another one: by a forced
// recovery of one server, or from a backup. The new cluster is the successor, the other one its
// predecessor. Servers of both have certificates of one CA, so a majority of the predecessor's
// servers could come back and serve the old state beside the successor.
//
// The successor keeps the IDs of its predecessors in its replicated state, so all of its members
// know them, and tells a server of one:
//
//	a server of the predecessor ──its greeting──▶ a server of the successor
//	                            ◀──refused: "cluster Y goes on in place of X"──
//
// That server is superseded. It serves nothing from then on, and its directory is marked, so a
// restart changes nothing. No evidence is weighed: whichever cluster was made later goes on,
// because somebody has decided so.
//
// A server believes only a server that it has called, at an address that its own cluster has for a
// member. So a copy of a disk that is recovered for a drill, at another address, stops no server.

// Succession tells that a cluster goes on as another one.
type Succession struct {
	Cluster string `json:"cluster"` // the predecessor
	// Successor is the cluster that goes on in its place. Earlier versions gave the name in JSON,
	// in the state and on disk.
	Successor string `json:"heir"`
	By        string `json:"by"` // ID of the successor's first server
	// At is when the successor was made, by the clock of that server. It is for people.
	At time.Time `json:"at"`
}

// Survivor is the name of the successor's first server.
func (s Succession) Survivor() string { return NameOf(s.By) }

func (s Succession) String() string {
	return fmt.Sprintf("cluster %q goes on as cluster %q, which server %q began at %s", s.Cluster, s.Successor, s.By, s.At.Format(time.RFC3339))
}

// PredecessorPrefix is that of the keys under which a cluster keeps its predecessors, each under
// its ID. Neither a backup nor a restore of one brings any, or takes any away.
const PredecessorPrefix = kv.ReservedPrefix + "ancestors/"

// Op is what the successor's state gets.
func (s Succession) Op() (kv.Op, error) {
	value, err := json.Marshal(s)
	return kv.Op{Kind: kv.Put, Key: PredecessorPrefix + s.Cluster, Value: value}, err
}

// Predecessors returns the clusters in whose place this one goes on.
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
	s.Successor = successor // the one that was written down may have a successor itself: this one
	return s
}

// SupersededError is returned by Open for the directory of a server in place of whose cluster
// another one goes on.
type SupersededError struct {
	Dir string
	Succession
}

func (e *SupersededError) Error() string {
	return fmt.Sprintf("%s, without this server, whose directory is %s: it must not serve the old state beside that. It can join again, as a new server, "+
		"with an empty directory; or, when that other cluster is given up for good, this directory is recovered itself", e.Succession, e.Dir)
}
