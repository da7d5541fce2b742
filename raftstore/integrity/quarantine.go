package integrity

import (
	"fmt"
	"sync"

	"github.com/barque/barque/raftstore/disk"
	"github.com/barque/barque/raftstore/kv"
)

// Quarantine is whether this server may serve. It may until its state was found to be wrong, and
// never again after that, until it is opened with another state: see statetransfer.go.
//
// A server in quarantine still takes and acknowledges log entries, and votes: its log is right,
// only its state is not, and the others may need its vote. It can even be elected, when no other
// has as long a log; then it brings the others up to date, hands leadership over, and serves no
// request meanwhile.
type Quarantine struct {
	path  string        // of the mark; empty in memory
	begun chan struct{} // closed once the mark is written

	mu     sync.Mutex
	reason string
	cure   string // the attempt to get a right state

	persisting sync.RWMutex // held for reading while Raft writes a snapshot of the state
}

// openQuarantine finds out whether the directory is marked; empty is none, as in memory.
func openQuarantine(dir, joinAgain string) (*Quarantine, error) {
	q := &Quarantine{begun: make(chan struct{})}
	if dir == "" {
		return q, nil
	}
	q.path = disk.QuarantinePath(dir)
	reason, err := disk.ReadQuarantine(dir, joinAgain)
	if err == nil && reason != "" {
		q.begin(reason)
		close(q.begun)
	}
	return q, err
}

// begin starts the quarantine, unless it has begun. The caller closes begun then.
func (q *Quarantine) begin(reason string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.reason != "" {
		return false
	}
	q.reason = reason
	return true
}

// Why returns why this server is in quarantine; empty when it is not.
func (q *Quarantine) Why() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.reason
}

// treat notes the cure, and returns whether it is news.
func (q *Quarantine) treat(cure string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	news := q.cure != cure
	q.cure = cure
	return news
}

// Explain is err, with the cure.
func (q *Quarantine) Explain() error {
	err := q.Err()
	q.mu.Lock()
	defer q.mu.Unlock()
	if err == nil || q.cure == "" {
		return err
	}
	return fmt.Errorf("%w; %s", err, q.cure)
}

// Err returns an ErrQuarantined, or nil when this server may serve.
func (q *Quarantine) Err() error {
	if reason := q.Why(); reason != "" {
		return fmt.Errorf("%w: %s", kv.ErrQuarantined, reason)
	}
	return nil
}
