package containerd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	criclient "github.com/barque/barque/kubelet/cri"
	"github.com/barque/barque/kubelet/exits"
)

const (
	sweepEvery = time.Hour
	sweepAge   = 10 * time.Minute // until CRI has certainly written down the end of a container
)

// Exits has the records of container ends that the runtime may have lost.
func (s *Supervisor) Exits() exits.Dir { return s.layout.exits() }

// recordEnds records the container ends that no containerd has seen. It is called while none runs:
// the next one removes the bundles whose shims have ended, too.
func (s *Supervisor) recordEnds() {
	if err := recordEnds(s.layout); err != nil {
		s.config.Logger.Warn(
			"cannot record how all containers ended while no containerd ran; they may show as failed with exit code 255", "err", err)
	}
}

func recordEnds(l layout) error {
	bundles, err := filepath.Glob(filepath.Join(l.state(), tasksPlugin, criNamespace, "*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, bundle := range bundles {
		id := filepath.Base(bundle)
		if _, found := l.exits().Read(id); found {
			continue // by its shim
		}
		record, ended, err := exits.OfBundle(bundle)
		if err == nil && ended {
			err = l.exits().Write(id, record)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("container %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// sweepEnds removes the records that CRI's own status has replaced, and those of containers that
// CRI does not know.
func sweepEnds(ctx context.Context, dir exits.Dir, cri *criclient.Client) error {
	ids, err := dir.IDs(sweepAge)
	if err != nil || len(ids) == 0 {
		return err
	}
	containers, err := cri.ListContainers(ctx, nil)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, c := range containers {
		known[c.Id] = true
	}
	var errs []error
	for _, id := range ids {
		if known[id] {
			status, err := cri.ContainerStatus(ctx, id)
			if err != nil && !criclient.IsNotFound(err) {
				errs = append(errs, err)
				continue
			}
			if record, found := dir.Read(id); err == nil && found && criclient.CorrectExit(status, record) {
				continue
			}
		}
		errs = append(errs, dir.Remove(id))
	}
	return errors.Join(errs...)
}

// keepSweeping sweeps at once, and from time to time until ctx ends.
func (s *Supervisor) keepSweeping(ctx context.Context) {
	cri, err := criclient.Dial(s.layout.socket())
	if err != nil {
		s.config.Logger.Error("old records of ended containers stay", "dir", s.layout.exits(), "err", err)
		return
	}
	defer cri.Close()
	for {
		if err := sweepEnds(ctx, s.layout.exits(), cri); err != nil && ctx.Err() == nil {
			s.config.Logger.Warn("cannot remove old records of ended containers; trying again in an hour", "dir",
				s.layout.exits(), "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(sweepEvery):
		}
	}
}
