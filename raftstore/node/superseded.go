package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
// member. So a copy of a disk that is recovered for a drill, at another address, stops nobody.

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
func (s Succession) Survivor() string { return nameOf(s.By) }

func (s Succession) String() string {
	return fmt.Sprintf("cluster %q goes on as cluster %q, which server %q began at %s", s.Cluster, s.Successor, s.By, s.At.Format(time.RFC3339))
}

// predecessorPrefix is that of the keys under which a cluster keeps its predecessors, each under
// its ID. Neither a backup nor a restore of one brings any, or takes any away.
const predecessorPrefix = kv.ReservedPrefix + "ancestors/"

// record is what the successor's state gets.
func (s Succession) record() (kv.Op, error) {
	value, err := json.Marshal(s)
	return kv.Op{Kind: kv.Put, Key: predecessorPrefix + s.Cluster, Value: value}, err
}

// predecessors returns the clusters in whose place this one goes on.
func predecessors(view *mvcc.View) []Succession {
	var all []Succession
	view.Ascend(predecessorPrefix, "", func(item kv.Item) bool {
		s := Succession{Cluster: strings.TrimPrefix(item.Key, predecessorPrefix)}
		if json.Unmarshal(item.Value, &s) == nil {
			all = append(all, s)
		}
		return true
	})
	return all
}

// Predecessors returns the clusters in whose place this one goes on, as far as this server knows.
func (n *Node) Predecessors() []Succession { return predecessors(n.state.Latest()) }

// Succeed returns what writes down that this cluster goes on in place of another one.
func (n *Node) Succeed(cluster string) (kv.Op, error) {
	return Succession{Cluster: cluster, Successor: n.id.ClusterID, By: n.id.ServerID, At: n.cfg.Now().UTC()}.record()
}

// succeeded returns how this cluster became the successor of another one, or nil when it is not.
func (n *Node) succeeded(cluster string) *Succession {
	item, ok := n.state.Latest().Get(predecessorPrefix + cluster)
	if !ok {
		return nil
	}
	s := new(Succession)
	if json.Unmarshal(item.Value, s) != nil || s.Cluster != cluster {
		return nil // a newer version may write a form that this one cannot read
	}
	s.Successor = n.id.ClusterID // the one that was written down may have a successor itself: this one
	return s
}

// heed looks for a succession in the error of a connection that did not come about. It does not
// block.
func (n *Node) heed(err error) {
	var stranger *StrangerError
	if !errors.As(err, &stranger) || stranger.Succession == nil {
		return
	}
	select {
	case n.successions <- *stranger.Succession:
	default: // one is enough
	}
}

// awaitSuccessor ends with the node, or when this server is superseded.
func (n *Node) awaitSuccessor() {
	select {
	case s := <-n.successions:
		n.supersede(s)
	case <-n.ctx.Done():
	}
}

// supersede takes this server out of service, for good.
func (n *Node) supersede(s Succession) {
	e := &SupersededError{Dir: n.cfg.Dir, Succession: s}
	n.superseded.Store(&e.Succession)
	n.stream.cut() // no vote, no entry, no heartbeat from here on
	n.quarantine.begin(e.Error())
	n.withdraw()
	n.cfg.Logger.Error("another cluster goes on in place of this server's: this server serves nothing any more, and stops; "+n.cfg.JoinAgain,
		"server", n.id.ServerID, "cluster", s.Cluster, "goesOnAs", s.Successor, "since", s.At, "by", s.By)
	if !n.cfg.InMemory {
		if err := writeJSON(filepath.Join(n.cfg.Dir, supersededFile), s); err != nil { // it is told again at the next start
			n.cfg.Logger.Error("cannot mark the directory of a superseded server: do not start it again as it is", "err", err)
		}
	}
	if n.cfg.OnSuperseded != nil {
		n.cfg.OnSuperseded(s)
	}
}

// whySuperseded returns an ErrUnavailable when this server is superseded.
func (n *Node) whySuperseded() error {
	if s := n.superseded.Load(); s != nil {
		return fmt.Errorf("%w: %w", kv.ErrUnavailable, &SupersededError{Dir: n.cfg.Dir, Succession: *s})
	}
	return nil
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

// supersededFile marks the directory of a superseded server. The name is that of earlier versions,
// whose marks hold.
const supersededFile = "outlived.json"

// readSuperseded returns the mark of a directory of that cluster; nil when there is none. One of
// another cluster is from before the directory was recovered itself.
func readSuperseded(cfg *Config, cluster string) (*Succession, error) {
	if cfg.InMemory {
		return nil, nil
	}
	data, err := os.ReadFile(filepath.Join(cfg.Dir, supersededFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read whether this server is superseded: %w", err)
	}
	s := new(Succession)
	if err := json.Unmarshal(data, s); err != nil || s.Cluster == "" {
		return &Succession{Cluster: cluster, Successor: "unknown: " + supersededFile + " cannot be read"}, nil
	}
	if s.Cluster != cluster {
		return nil, nil
	}
	return s, nil
}

// checkNotSuperseded refuses a directory that is marked.
func checkNotSuperseded(cfg *Config, cluster string) error {
	s, err := readSuperseded(cfg, cluster)
	if err == nil && s != nil {
		err = &SupersededError{Dir: cfg.Dir, Succession: *s}
	}
	return err
}

// Superseded tells which cluster goes on in place of that of a directory, as its server has
// learned; nil when it has learned of none. It takes no hold of the directory, whose server may
// run.
func Superseded(dir string) (*Succession, error) {
	cfg := &Config{Dir: dir}
	id, err := openIdentity(cfg)
	if err != nil {
		return nil, err
	}
	return readSuperseded(cfg, id.ClusterID)
}

// removeOldRecords removes files of earlier versions, which recorded when a server had a leader.
// One that stays does no harm.
func removeOldRecords(cfg *Config) {
	if !cfg.InMemory {
		_ = os.Remove(filepath.Join(cfg.Dir, "presence.json"))
		_ = os.Remove(filepath.Join(cfg.Dir, "presence.json.spare"))
	}
}
