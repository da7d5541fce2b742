package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/internal/atomicfile"
)

// EndOldTransfer ends a state transfer that an earlier version has begun. That kept the leader's
// state in a directory of its own, with a plan to replace the snapshots by it. It may have been
// killed with none of them left, so the state becomes a snapshot here. A server that is still
// marked gets a right state anew.
func EndOldTransfer(o *Options) error {
	if o.InMemory {
		return nil
	}
	dir := filepath.Join(o.Dir, "seed")
	plan := filepath.Join(dir, "meta.json")
	data, err := os.ReadFile(plan)
	if errors.Is(err, fs.ErrNotExist) {
		return os.RemoveAll(dir)
	}
	meta := new(raft.SnapshotMeta)
	if err == nil {
		err = json.Unmarshal(data, meta)
	}
	if err == nil {
		err = keepState(o, meta, filepath.Join(dir, "state.bin"))
	}
	if err != nil {
		return fmt.Errorf(
			"take over the state that an earlier version has got from the leader: %w; without it, move %s away", err,
			dir)
	}
	if _, err := os.Stat(QuarantinePath(o.Dir)); err == nil { // it was not done
		if err := atomicfile.Remove(filepath.Join(o.Dir, TransferFile)); err != nil {
			return err
		}
	}
	return errors.Join(atomicfile.Remove(plan), os.RemoveAll(dir))
}

func keepState(o *Options, meta *raft.SnapshotMeta, path string) error {
	snapshots, err := openSnapshots(o, nil, nil)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	sink, err := snapshots.Create(meta.Version, meta.Index, meta.Term, meta.Configuration, meta.ConfigurationIndex, nil)
	if err != nil {
		return err
	}
	if _, err := io.Copy(sink, f); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}
