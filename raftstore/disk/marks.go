package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/raftstore/group"
)

// A mark is a file in the data directory that records the fate of the server for the next start, or
// an operator. Open refuses a directory with the mark of a removal, a succession or a recovery.
// With the mark of a quarantine the server serves nothing.

// CheckNotRemoved refuses the directory of a server of that name which has learned that it was
// taken out.
func CheckNotRemoved(o *Options, name string) error {
	if o.InMemory {
		return nil
	}
	data, err := os.ReadFile(filepath.Join(o.Dir, removedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read whether this server was removed: %w", err)
	}
	e := &group.RemovedError{Dir: o.Dir}
	if err := json.Unmarshal(data, &e.Removal); err != nil {
		e.Removal = group.Removal{Name: name, Why: "the mark cannot be read: " + err.Error()}
	}
	return e
}

// ReadSuperseded returns the mark of a directory of that cluster; nil without one. A mark of
// another cluster is from before a recovery of the directory itself.
func ReadSuperseded(o *Options, cluster string) (*group.Succession, error) {
	if o.InMemory {
		return nil, nil
	}
	data, err := os.ReadFile(filepath.Join(o.Dir, supersededFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read whether this server is superseded: %w", err)
	}
	s := new(group.Succession)
	if err := json.Unmarshal(data, s); err != nil || s.Cluster == "" {
		return &group.Succession{Cluster: cluster, Successor: "unknown: " + supersededFile + " cannot be read"}, nil
	}
	if s.Cluster != cluster {
		return nil, nil
	}
	return s, nil
}

// CheckNotSuperseded refuses a directory that is marked.
func CheckNotSuperseded(o *Options, cluster string) error {
	s, err := ReadSuperseded(o, cluster)
	if err == nil && s != nil {
		err = &group.SupersededError{Dir: o.Dir, Succession: *s}
	}
	return err
}

// Ended reports whether a directory has the mark of a removal or a succession.
func Ended(o *Options) (bool, error) {
	var removed *group.RemovedError
	switch err := CheckNotRemoved(o, ""); {
	case errors.As(err, &removed):
		return true, nil
	case err != nil:
		return false, err
	}
	if _, err := os.Stat(filepath.Join(o.Dir, identityFile)); errors.Is(err, fs.ErrNotExist) {
		return false, nil // OpenIdentity would make it
	}
	id, err := OpenIdentity(o, Owner{})
	if err != nil {
		return false, err
	}
	by, err := ReadSuperseded(o, id.ClusterID)
	return by != nil, err
}

// Recovery is the mark of a directory under recovery: see Recover.
type Recovery struct {
	ClusterID string `json:"clusterID"`
}

// CheckNotRecovering refuses a directory with an unfinished recovery.
func CheckNotRecovering(o *Options) error {
	r, err := ReadRecovery(o)
	if err == nil && r != nil {
		err = fmt.Errorf("%s is in the middle of a recovery: finish it first, with the same command", o.Dir)
	}
	return err
}

func ReadRecovery(o *Options) (*Recovery, error) {
	if o.InMemory {
		return nil, nil
	}
	data, err := os.ReadFile(filepath.Join(o.Dir, recoveryFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read whether a recovery is under way: %w", err)
	}
	r := new(Recovery)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", filepath.Join(o.Dir, recoveryFile), err)
	}
	return r, nil
}

// BeginRecovery marks a directory at the begin of its recovery.
func BeginRecovery(dir, clusterID string) error {
	return WriteJSON(filepath.Join(dir, recoveryFile), Recovery{ClusterID: clusterID})
}

// EndRecovery removes the mark. The directory's record of a successor is void then.
func EndRecovery(dir string) error {
	return errors.Join(atomicfile.Remove(filepath.Join(dir, supersededFile)),
		atomicfile.Remove(filepath.Join(dir, recoveryFile)))
}

// MarkRemoved marks the directory of a server that has learned that it was taken out.
func MarkRemoved(dir string, r group.Removal) error {
	return WriteJSON(filepath.Join(dir, removedFile), r)
}

// MarkSuperseded marks the directory of a server whose cluster has a successor.
func MarkSuperseded(dir string, s group.Succession) error {
	return WriteJSON(filepath.Join(dir, supersededFile), s)
}

// QuarantineMark is the mark of a server whose state is wrong. A restart does not correct it: the
// next snapshot on disk may hold it. The mark is removed with the directory.
type QuarantineMark struct {
	Since  time.Time `json:"since"`
	Reason string    `json:"reason"`
}

// QuarantinePath is where that mark is.
func QuarantinePath(dir string) string { return filepath.Join(dir, quarantineFile) }

// ReadQuarantine returns why a server is in quarantine; empty when it is not. joinAgain is the
// advice for operators how a server joins again.
func ReadQuarantine(dir, joinAgain string) (reason string, err error) {
	data, err := os.ReadFile(QuarantinePath(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read whether the store is in quarantine: %w", err)
	}
	var m QuarantineMark
	if err := json.Unmarshal(data, &m); err != nil || m.Reason == "" {
		m.Reason = fmt.Sprintf("%s exists, but cannot be read: remove this server from the cluster and %s",
			QuarantinePath(dir), joinAgain)
	}
	return m.Reason, nil
}

// RemoveOldRecords removes files of earlier versions, which recorded when a server had a leader. A
// remaining one does no harm.
func RemoveOldRecords(dir string) {
	_ = os.Remove(filepath.Join(dir, "presence.json"))
	_ = os.Remove(filepath.Join(dir, "presence.json.spare"))
}
