package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/mvcc"
)

// A recovery makes a group of its own of one server. The others of the group before it are shut out by that, but
// as soon as a majority of them runs they would elect a leader among themselves, and serve the old state beside the new
// one. So every server of the recovered group knows of which groups it is the heir, and tells it to the servers of these
// when it turns them away:
//
//	a server of the old group ──its greeting──▶ a server of the heir
//	                          ◀──turned away: "yours was recovered, by S at T"──
//
// It is told so on a connection on which both have shown that they are servers of this cluster's CA, and only by
// whoever it calls: the addresses that its own group has for its members. What it makes of that stands in outlived.go.
//
// The ancestors stand in the replicated state, below keys of the store's own, so that all members have them, whoever of
// them was there at the recovery. Neither a backup nor a restore of one brings any, or takes any away.

// Succession tells that a cluster was recovered from a lost quorum, and goes on as another one.
type Succession struct {
	Cluster string `json:"cluster"` // that was recovered
	Heir    string `json:"heir"`    // as which it goes on
	By      string `json:"by"`      // ID of the server that was recovered
	// At is when, by that server's clock.
	At time.Time `json:"at"`
}

// recovery names the recovery, whatever the heir is called by now: it may have been recovered once more, itself.
func (s *Succession) recovery() string { return s.By + "/" + s.At.UTC().Format(time.RFC3339Nano) }

// Survivor is the name of the server that was recovered.
func (s Succession) Survivor() string { return nameOf(s.By) }

func (s Succession) String() string {
	return fmt.Sprintf("cluster %q was recovered at %s, by server %q, and goes on as %q", s.Cluster, s.At.Format(time.RFC3339), s.By, s.Heir)
}

const (
	// ancestorPrefix is that of the keys under which a group keeps of which others it is the heir, and disownedPrefix
	// of those under which it keeps which recoveries of it were a mistake. The cluster's ID follows, or the name of the recovery.
	ancestorPrefix = kv.ReservedPrefix + "ancestors/"
	disownedPrefix = kv.ReservedPrefix + "disowned/"
)

// inherit is what the state of a group that is being recovered gets.
func inherit(s Succession) (kv.Op, error) {
	value, err := json.Marshal(s)
	return kv.Op{Kind: kv.Put, Key: ancestorPrefix + s.Cluster, Value: value}, err
}

// ancestors returns which clusters this one was recovered from.
func ancestors(view *mvcc.View) []Succession {
	var all []Succession
	view.Ascend(ancestorPrefix, "", func(item kv.Item) bool {
		s := Succession{Cluster: strings.TrimPrefix(item.Key, ancestorPrefix)}
		if json.Unmarshal(item.Value, &s) == nil {
			all = append(all, s)
		}
		return true
	})
	return all
}

// Ancestors returns from which clusters this one was recovered, as far as this server knows.
func (n *Node) Ancestors() []Succession { return ancestors(n.state.Latest()) }

// bequest is how this group became the heir of a cluster, and how long ago by this server's clock. Who is told counts back from now by
// his own clock, which may differ by any time that does not change. This server's must agree with that of the server that was recovered,
// and neither must have been set since.
type bequest struct {
	Succession
	age time.Duration
}

// inherited returns how this group became the heir of a cluster, or nil when it is not.
func (n *Node) inherited(cluster string) *bequest {
	item, ok := n.state.Latest().Get(ancestorPrefix + cluster)
	if !ok {
		return nil
	}
	s := new(Succession)
	if json.Unmarshal(item.Value, s) != nil || s.Cluster != cluster {
		return nil // a newer version may write what this one cannot read
	}
	s.Heir = n.id.ClusterID // who was recovered more than once is the heir of all
	return &bequest{*s, max(0, n.cfg.Now().Sub(s.At))}
}

// append writes it as it goes over the wire: its parts but for the cluster, which the other one has named.
func (b *bequest) append(to []byte) []byte {
	for _, text := range []string{b.Heir, b.By, b.At.UTC().Format(time.RFC3339Nano), strconv.FormatInt(int64(b.age), 10)} {
		to = appendText(to, text)
	}
	return to
}

// OutlivedError is returned by Open for the directory of a server whose cluster was recovered without it.
type OutlivedError struct {
	Dir string
	Succession
}

func (e *OutlivedError) Error() string {
	return fmt.Sprintf("%s, without this server, whose directory is %s: it must not serve the old state beside that. It can join again, as a new server, "+
		"with an empty directory; or, when that other cluster is given up for good, this directory is recovered itself", e.Succession, e.Dir)
}

// outlivedFile marks the directory of a server that has learned that its cluster was recovered without it.
const outlivedFile = "outlived.json"

// readOutlived returns the mark of a directory of that cluster; nil when there is none. One of another cluster is from
// before the directory was recovered itself.
func readOutlived(cfg *Config, cluster string) (*Succession, error) {
	if cfg.InMemory {
		return nil, nil
	}
	data, err := os.ReadFile(filepath.Join(cfg.Dir, outlivedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read whether the cluster was recovered without this server: %w", err)
	}
	s := new(Succession)
	if err := json.Unmarshal(data, s); err != nil || s.Cluster == "" {
		return &Succession{Cluster: cluster, Heir: "unknown: " + outlivedFile + " cannot be read"}, nil
	}
	if s.Cluster != cluster {
		return nil, nil
	}
	return s, nil
}

// checkNotOutlived refuses a directory that is marked.
func checkNotOutlived(cfg *Config, cluster string) error {
	s, err := readOutlived(cfg, cluster)
	if err == nil && s != nil {
		err = &OutlivedError{Dir: cfg.Dir, Succession: *s}
	}
	return err
}

// disown writes down, for all members, that a cluster calls itself the heir of this one and is not: this one was never
// without a leader.
func (n *Node) disown(s Succession) error {
	value, err := json.Marshal(s)
	if err != nil {
		return err
	}
	outcome, err := n.Propose(n.ctx, &command.Request{Kind: command.KindTxn, Txn: kv.Txn{
		Ops: []kv.Op{{Kind: kv.Put, Key: disownedPrefix + s.recovery(), Value: value}}, Term: n.leadership.term(),
	}})
	if err == nil {
		_, err = outcome.Result()
	}
	return err
}

// disowned tells whether that was written down. After a start of all servers it may stand in the log behind what is known to
// be committed: there, too, it is the word of one who led.
func (n *Node) disowned(s Succession) bool {
	key := disownedPrefix + s.recovery()
	if _, ok := n.state.Latest().Get(key); ok {
		return true
	}
	for index, last := n.fsm.Applied().Index+1, n.raft.LastIndex(); index <= last; index++ {
		var entry raft.Log
		if n.storage.log.GetLog(index, &entry) == nil && bytes.Contains(entry.Data, []byte(key)) {
			return true
		}
	}
	return false
}

// Outlived tells what the server of a directory has learned of a recovery of its cluster without it; nil when nothing. It
// takes no hold of the directory, whose server may run.
func Outlived(dir string) (*Succession, error) {
	cfg := &Config{Dir: dir}
	id, err := openIdentity(cfg)
	if err != nil {
		return nil, err
	}
	return readOutlived(cfg, id.ClusterID)
}
