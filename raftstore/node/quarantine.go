package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/kv"
)

// quarantineFile marks the directory of a server whose state is wrong. A restart does not make it
// right: the next snapshot on disk may hold it. The mark goes with the directory.
const quarantineFile = "quarantine.json"

// quarantine is whether this server may serve. It may until its state was found to be wrong, and
// never again after that, until it is opened with another state: see reseed.
//
// A server in quarantine still takes and acknowledges log entries, and votes: its log is right,
// only what it made of it is not, and the others may need its vote. It can even be elected, when no
// other has as long a log; then it brings the others up to date, hands leadership over, and serves
// nobody meanwhile.
type quarantine struct {
	path  string        // of the mark; empty in memory
	begun chan struct{} // closed with the first verdict

	mu     sync.Mutex
	reason string
	cure   string // what is done about it
}

// mark is what stands in quarantineFile.
type mark struct {
	Since  time.Time `json:"since"`
	Reason string    `json:"reason"`
}

// openQuarantine finds out whether the directory is marked.
func openQuarantine(cfg *Config) (*quarantine, error) {
	q := &quarantine{begun: make(chan struct{})}
	if cfg.InMemory {
		return q, nil
	}
	q.path = filepath.Join(cfg.Dir, quarantineFile)
	data, err := os.ReadFile(q.path)
	if errors.Is(err, fs.ErrNotExist) {
		return q, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read whether the store is in quarantine: %w", err)
	}
	var m mark
	if err := json.Unmarshal(data, &m); err != nil || m.Reason == "" {
		m.Reason = fmt.Sprintf("%s exists, but cannot be read: remove this server from the cluster and %s", q.path, cfg.JoinAgain)
	}
	q.begin(m.Reason)
	return q, nil
}

// begin starts the quarantine, unless it has begun.
func (q *quarantine) begin(reason string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.reason != "" {
		return false
	}
	q.reason = reason
	close(q.begun)
	return true
}

// why returns why this server is in quarantine; empty when it is not.
func (q *quarantine) why() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.reason
}

// treat takes note of what is done to get a right state.
func (q *quarantine) treat(cure string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.cure = cure
}

// explain is err, with what is done about it.
func (q *quarantine) explain() error {
	err := q.err()
	q.mu.Lock()
	defer q.mu.Unlock()
	if err == nil || q.cure == "" {
		return err
	}
	return fmt.Errorf("%w; %s", err, q.cure)
}

// err returns an ErrQuarantined, or nil when this server may serve.
func (q *quarantine) err() error {
	if reason := q.why(); reason != "" {
		return fmt.Errorf("%w: %s", kv.ErrQuarantined, reason)
	}
	return nil
}

// isolate puts this server in quarantine: from now on it serves nothing, and does no leader's work.
func (n *Node) isolate(reason string) {
	if !n.quarantine.begin(reason) {
		return
	}
	n.withdraw()
	if n.quarantine.path == "" {
		return
	}
	if err := writeJSON(n.quarantine.path, mark{Since: time.Now().UTC(), Reason: reason}); err != nil {
		n.cfg.Logger.Error("the quarantine will not outlive a restart: do not restart this server before it was removed from the cluster",
			"file", n.quarantine.path, "err", err)
	}
}

// withdraw takes the state away from its readers, and the office from a leader.
func (n *Node) withdraw() {
	if err := n.quarantine.err(); err != nil {
		n.state.Withdraw(err)
		n.leadership.deposed(err)
	}
}

// handOverEvery is how often a server in quarantine looks whether it was elected.
const handOverEvery = 100 * time.Millisecond

// keepQuarantine says that this server is in quarantine, when it is, and hands leadership over
// whenever it has it. It ends with the node.
func (n *Node) keepQuarantine() {
	select {
	case <-n.quarantine.begun:
	case <-n.ctx.Done():
		return
	}
	if n.superseded.Load() != nil {
		return // that is past mending
	}
	n.cfg.Logger.Error("this server is in quarantine and serves nothing: "+n.quarantine.why(), "server", n.id.ServerID, "mark", n.quarantine.path)
	n.running.Go(n.reseed) // ends with the node
	ticker := time.NewTicker(handOverEvery)
	defer ticker.Stop()
	for {
		if n.raft.State() == raft.Leader {
			if err := n.bequeath("it is in quarantine", true); err != nil {
				n.cfg.Logger.Debug("cannot hand leadership over yet", "err", err)
			}
		}
		select {
		case <-ticker.C:
		case <-n.ctx.Done():
			return
		}
	}
}

// InstallSnapshot implements raft.Transport. A server in quarantine that leads for a moment must
// not give its state to another.
func (a *attentive) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	if err := a.quarantine.err(); err != nil {
		return err
	}
	return a.named.InstallSnapshot(id, target, args, resp, data)
}
