package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/internal/remains"
)

// Membership is the part that the node on this machine has in its cluster.
type Membership struct {
	// Role is empty where no node has been on this machine, or its data are gone.
	Role, Name, Cluster string
	// Member is set for a server that counts in its cluster's store.
	Member bool
	// Servers are the names of the other servers that this one knows of.
	Servers []string
}

// Refusal is why the node may not be taken off the machine without force; empty if it may. With
// purge its data would be deleted, which are in dataDir.
func (m Membership) Refusal(dataDir string, purge bool) string {
	if !m.Member {
		return ""
	}
	if len(m.Servers) == 0 {
		lost := fmt.Sprintf("Its data stay in %s: installed again, the cluster goes on.", dataDir)
		if purge {
			lost = fmt.Sprintf("With --purge, all objects and Secrets of the cluster are lost, with %s. To have a backup: barque snapshot save.",
				dataDir)
		}
		return fmt.Sprintf("%s is the only server of the cluster %s, which ends with it. %s To do it all the same: --force.", m.Name,
			m.Cluster, lost)
	}
	all := len(m.Servers) + 1
	left, quorum := all-1, all/2+1
	effect := fmt.Sprintf("the other %d of %d are no quorum: the cluster writes nothing any more", left, all)
	switch spare := left - quorum; {
	case spare == 0:
		effect = fmt.Sprintf("the other %d of %d are just a quorum: the next one that fails stops the cluster",
			left, all)
	case spare > 0:
		effect = fmt.Sprintf("the other %d of %d stay a quorum while at most %d of them fail", left, all, spare)
	}
	return fmt.Sprintf("%s is a member of the cluster %s, with %s. Without it %s. Let it leave first: barque cluster leave. "+
		"If it was removed while it was off, or to do it all the same: --force.", m.Name, m.Cluster,
		strings.Join(m.Servers, ", "), effect)
}

// Removal takes a node off this machine.
type Removal struct {
	// Root is empty but for tests.
	Root  string
	Inits []Init
	// Unused fails while a process uses the node's data, though its service was stopped.
	Unused func(context.Context) error
	// Kinds are the things that the node has left on the machine, in the order of their removal.
	Kinds []remains.Kind
	// Purge removes the data, too: DataDirs, and the settings.
	Purge    bool
	DataDirs []string
	// Program is removed, unless a package has it.
	Program  string
	Packaged bool
}

// Plan returns the steps. It looks at the machine, and changes nothing.
func (r *Removal) Plan(ctx context.Context) (Plan, error) {
	var plan, after Plan
	for _, i := range r.Inits {
		for _, role := range Roles {
			stop, forget, err := r.service(ctx, i, role)
			if err != nil {
				return nil, err
			}
			plan, after = append(plan, stop), append(after, forget...)
		}
	}
	plan = append(plan, Step{What: "see that nothing uses the data any more", Do: r.Unused, Done: true})
	check := len(plan) - 1
	for _, k := range r.Kinds {
		found, err := k.Find(ctx)
		if err != nil {
			return nil, fmt.Errorf("look for %s: %w", k.Name, err)
		}
		plan = append(plan, Step{What: "remove " + k.Name, Lines: shorten(found), Done: len(found) == 0,
			Do: func(ctx context.Context) error { return r.remove(ctx, k) }})
	}
	if r.Purge {
		for _, dir := range append(slices.Clone(r.DataDirs), filepath.Join(r.Root, ConfigDir)) {
			s, err := deleteStep(dir)
			if err != nil {
				return nil, err
			}
			plan = append(plan, s)
		}
	}
	plan = append(plan, after...)
	if !r.Packaged {
		s, err := deleteStep(r.Program)
		if err != nil {
			return nil, err
		}
		plan = append(plan, s)
	}
	plan[check].Done = Plan(plan).Done()
	return plan, nil
}

// service returns the step that stops a service, and those that remove its files.
func (r *Removal) service(ctx context.Context, i Init, role string) (stop Step, forget Plan, err error) {
	state, err := i.State(ctx, role)
	if err != nil {
		return stop, nil, err
	}
	enabled, err := i.Enabled(ctx, role)
	if err != nil {
		return stop, nil, err
	}
	file, _ := i.File(role)
	stop = Step{What: "stop " + serviceName(role) + ", and start it at no boot any more",
		Done: !state.Active && !enabled, Do: func(ctx context.Context) error { return i.Stop(ctx, role) }}
	remove, err := deleteStep(file)
	if err != nil {
		return stop, nil, err
	}
	remove.Do = func(ctx context.Context) error {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return i.Forget(ctx, role)
	}
	forget = Plan{remove}
	if !r.Purge {
		return stop, forget, nil
	}
	also := file + ".d" // drop-ins of the unit
	if i.Name() == OpenRCName {
		also = filepath.Join(r.Root, "/var/log", serviceName(role)+".log")
	}
	s, err := deleteStep(also)
	return stop, append(forget, s), err
}

// settle bounds the wait for things that the kernel removes by itself, once their last user is
// gone.
const settle = 30 * time.Second

// remove removes a kind, and returns when none is left.
func (r *Removal) remove(ctx context.Context, k remains.Kind) error {
	if err := k.Remove(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, settle, fmt.Errorf("not gone after %s", settle))
	defer cancel()
	for {
		found, err := k.Find(ctx)
		if err != nil || len(found) == 0 {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", context.Cause(ctx), strings.Join(shorten(found), ", "))
		}
	}
}

// mostLines is how many names a plan shows of one kind.
const mostLines = 8

func shorten(found []string) []string {
	if len(found) <= mostLines {
		return found
	}
	return append(slices.Clone(found[:mostLines-1]), fmt.Sprintf("and %d more", len(found)-mostLines+1))
}
