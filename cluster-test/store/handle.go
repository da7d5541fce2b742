package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/barque/barque/cluster-test/disk"
	"github.com/barque/barque/cluster-test/store/member"
	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/raftstore"
)

// Member is the driver's handle of one member: its directory, its address, and its process while
// there is one.
type Member struct {
	Index   int
	Name    string
	Address string // at which the others know it

	group                *Group
	dir                  string
	disk                 *disk.Disk // nil: a directory
	certificate, key, ca []byte

	mu     sync.Mutex
	proc   *process // of the last start
	id     string
	opened time.Duration
	offset time.Duration
	armed  member.ArmArgs
}

// Data is the directory of the member's store. Where the member has a disk of its own it can only
// be read by Files.
func (m *Member) Data() string {
	if m.disk != nil {
		return filepath.Join(m.disk.Mount, "data")
	}
	return filepath.Join(m.dir, "data")
}

// Files runs f, which may read and change the files in Data of a member that does not run.
func (m *Member) Files(f func(dir string) error) error {
	return m.group.keeper.do(func() error { return f(m.Data()) })
}

// LogFile is where the process writes its log; it goes on in the same file when it is started
// again.
func (m *Member) LogFile() string { return filepath.Join(m.dir, "log") }

// ID is the server's ID, of the last time that it was started.
func (m *Member) ID() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.id
}

// Opened is how long raftstore.Open took when the member was started last.
func (m *Member) Opened() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.opened
}

// Running reports whether the process runs, if only paused.
func (m *Member) Running() bool {
	p := m.process()
	return p != nil && p.running()
}

func (m *Member) process() *process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.proc
}

// Start starts the process, and opens the store in its directory. When that fails, there is
// no process.
func (m *Member) Start(ctx context.Context) error {
	if m.Running() {
		return fmt.Errorf("member %s runs", m.Name)
	}
	g := m.group
	defer func() { m.armed = member.ArmArgs{} }()
	var p *process
	err := g.keeper.do(func() (err error) {
		p, err = startProcess(m.Name, m.LogFile(), func() {
			if g.links != nil {
				g.links.down(m.Index)
			}
		})
		return err
	})
	if err != nil {
		return err
	}
	args := member.OpenArgs{
		Name: m.Name, Dir: m.Data(), Address: m.Address, Certificate: m.certificate, Key: m.key, CA: m.ca,
		Bootstrap: m.Index == 0 && m.ID() == "", ClusterID: clusterID, Options: g.cfg.Options, Arm: m.armed,
	}
	if g.links != nil {
		args.Relay = relayOctet(m.Index)
	}
	var reply member.OpenReply
	err = p.call(ctx, "Open", &args, &reply)
	if err == nil {
		err = reply.Failed.Err(m.Name)
	}
	if err == nil && m.offset != 0 {
		err = p.call(ctx, "Clock", &member.ClockArgs{Offset: m.offset}, &struct{}{})
	}
	if err == nil && g.links != nil {
		err = g.links.up(m.Index)
	}
	if err != nil {
		p.kill()
		return fmt.Errorf("start member %s (log: %s): %w", m.Name, m.LogFile(), err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.proc, m.id, m.opened = p, reply.ID, reply.Took
	return nil
}

// Kill ends the process with SIGKILL, if there is one, and waits for that.
func (m *Member) Kill() error {
	if p := m.process(); p != nil {
		return p.kill()
	}
	return nil
}

// Exited waits until the process ends, by itself or by another one's hand, and returns how.
func (m *Member) Exited(ctx context.Context) (*os.ProcessState, error) {
	p := m.process()
	if p == nil {
		return nil, ErrDown
	}
	select {
	case <-p.exited:
		return p.state, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Stop stops the store in order and ends the process.
func (m *Member) Stop(ctx context.Context) error {
	var reply member.FailureReply
	if err := m.call(ctx, "Close", &struct{}{}, &reply); err != nil {
		return err
	}
	return errors.Join(reply.Failed.Err(m.Name), m.Kill())
}

// Pause stops the process where it is (SIGSTOP); Continue lets it go on.
func (m *Member) Pause() error { return m.signal(syscall.SIGSTOP) }

// Continue ends a Pause.
func (m *Member) Continue() error { return m.signal(syscall.SIGCONT) }

func (m *Member) signal(s syscall.Signal) error {
	p := m.process()
	if p == nil || !p.running() {
		return fmt.Errorf("%w: %s", ErrDown, m.Name)
	}
	return p.signal(s)
}

// Wipe gives a member that does not run an empty directory: the next Start makes it a new server,
// which must Join after the old one was removed.
func (m *Member) Wipe() error { return m.Files(os.RemoveAll) }

// Fill leaves no byte free on the member's disk, until Free.
func (m *Member) Fill() error { return m.onDisk((*disk.Disk).Fill) }

// Free takes back the space of Fill.
func (m *Member) Free() error { return m.onDisk((*disk.Disk).Free) }

// CutPower kills the process and makes the disk lose all that was not synced. Start finds the disk
// as after a power failure.
func (m *Member) CutPower() error {
	return errors.Join(m.onDisk((*disk.Disk).CutPower), m.Kill(), m.onDisk((*disk.Disk).Detach),
		m.onDisk((*disk.Disk).Attach))
}

func (m *Member) onDisk(f func(*disk.Disk) error) error {
	if m.disk == nil {
		return fmt.Errorf("member %s has no disk of its own: see Config.DiskMegabytes", m.Name)
	}
	return m.group.keeper.do(func() error { return f(m.disk) })
}

// SetClock sets how far the member's wall clock is off, also after a restart.
func (m *Member) SetClock(ctx context.Context, offset time.Duration) error {
	m.offset = offset
	return m.call(ctx, "Clock", &member.ClockArgs{Offset: offset}, &struct{}{})
}

// Arm makes the process kill itself when it comes to the point, one of package
// raftstore/faultpoint, for the hit-th time. A member that does not run does so after its next
// Start, or in the middle of it.
func (m *Member) Arm(ctx context.Context, point string, hit int) error {
	args := member.ArmArgs{Point: point, Hit: hit}
	if !m.Running() {
		m.armed = args
		return nil
	}
	return m.call(ctx, "Arm", &args, &struct{}{})
}

func (m *Member) call(ctx context.Context, method string, args, reply any) error {
	p := m.process()
	if p == nil || !p.running() {
		return fmt.Errorf("%w: %s", ErrDown, m.Name)
	}
	return p.call(ctx, method, args, reply)
}

// Commit is raftstore.Store.Commit. Besides its errors there are ErrGone and ErrDown.
func (m *Member) Commit(ctx context.Context, txn raftstore.Txn) (raftstore.Result, error) {
	var reply member.CommitReply
	if err := m.patient(ctx, "Commit", &member.CommitArgs{Txn: txn, Timeout: remaining(ctx)}, &reply); err != nil {
		return raftstore.Result{}, err
	}
	return reply.Result, reply.Failed.Err(m.Name)
}

// patient gives the member a little longer for its answer than the operation itself may take.
func (m *Member) patient(ctx context.Context, method string, args, reply any) error {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx),
		remaining(ctx)+m.group.cfg.Grace) // brief: the caller has set it
	defer cancel()
	return m.call(limited, method, args, reply)
}

// Get reads one key; false when it is absent. The revision is the view's.
func (m *Member) Get(
	ctx context.Context, key string, opts raftstore.ViewOptions,
) (item raftstore.Item, found bool, revision uint64, err error) {
	items, revision, err := m.view(ctx, member.ViewArgs{ListArgs: member.ListArgs{From: key, View: opts}, One: true})
	if len(items) == 0 {
		return raftstore.Item{}, false, revision, err
	}
	return items[0], true, revision, err
}

// List reads keys in order. The revision is the view's.
func (m *Member) List(ctx context.Context, args member.ListArgs) (items []raftstore.Item, revision uint64, err error) {
	return m.view(ctx, member.ViewArgs{ListArgs: args})
}

func (m *Member) view(ctx context.Context, args member.ViewArgs) (items []raftstore.Item, revision uint64, err error) {
	args.Timeout = remaining(ctx)
	var reply member.ViewReply
	if err := m.patient(ctx, "View", &args, &reply); err != nil {
		return nil, 0, err
	}
	return reply.Items, reply.Revision, reply.Failed.Err(m.Name)
}

// statusTimeout bounds calls that involve no other process than the member's.
const statusTimeout = 5 * time.Second

// Status is how the member sees itself and the group.
func (m *Member) Status(ctx context.Context) (raftstore.Status, []raftstore.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout) // brief: a member that stands still is passed over
	defer cancel()
	var reply member.StatusReply
	err := m.call(ctx, "Status", &struct{}{}, &reply)
	return reply.Status, reply.Members, err
}

// Join makes the member one of the cluster to which the running members belong.
func (m *Member) Join(ctx context.Context) error {
	c := member.Change{Kind: member.Join}
	for _, other := range m.group.Members() {
		if other != m && other.Running() {
			c.Addresses = append(c.Addresses, other.Address)
		}
	}
	return m.Change(ctx, c)
}

// Change makes the change, as this member.
func (m *Member) Change(ctx context.Context, c member.Change) error {
	var reply member.FailureReply
	if err := m.patient(ctx, "Change", &member.ChangeArgs{Change: c, Timeout: remaining(ctx)}, &reply); err != nil {
		return err
	}
	return reply.Failed.Err(m.Name)
}

// Load runs a load inside the member's process.
func (m *Member) Load(ctx context.Context, l member.Load) (member.LoadResult, error) {
	var r member.LoadResult
	err := m.call(ctx, "Load", &l, &r)
	return r, err
}

// Usage makes the member collect its garbage, and returns its usage then.
func (m *Member) Usage(ctx context.Context) (member.Usage, error) {
	var u member.Usage
	err := m.call(ctx, "Usage", &struct{}{}, &u)
	return u, err
}

// AtRest returns the member's usage, without a collection.
func (m *Member) AtRest(ctx context.Context) (member.Usage, error) {
	var u member.Usage
	err := m.call(ctx, "AtRest", &struct{}{}, &u)
	return u, err
}

// Watch opens a watcher on the member. It ends with the process.
func (m *Member) Watch(ctx context.Context, opts raftstore.WatchOptions) (*Watcher, error) {
	p := m.process()
	if p == nil {
		return nil, fmt.Errorf("%w: %s", ErrDown, m.Name)
	}
	var reply member.WatchReply
	if err := p.call(ctx, "Watch", &member.WatchArgs{Options: opts}, &reply); err != nil {
		return nil, err
	}
	return &Watcher{p, reply.ID}, reply.Failed.Err(m.Name)
}

// Watcher reads the event log of one run of a member. It is for one goroutine.
type Watcher struct {
	proc *process
	id   uint64
}

// Next returns the batches that are there, or waits, for a limited time, for the first; there may
// be none. It fails as raftstore.Watcher.Next does, or with ErrGone. With an error there may be
// batches that came before.
func (w *Watcher) Next(ctx context.Context, wait time.Duration) ([]raftstore.Batch, error) {
	ctx, cancel := context.WithTimeout(ctx, wait+await.Hang)
	defer cancel()
	var reply member.NextReply
	if err := w.proc.call(ctx, "Next", &member.NextArgs{ID: w.id, Timeout: wait}, &reply); err != nil {
		return nil, err
	}
	return reply.Batches, reply.Failed.Err(w.proc.name)
}

// RequestProgress is raftstore.Watcher.RequestProgress.
func (w *Watcher) RequestProgress(ctx context.Context) error {
	return w.proc.call(ctx, "Progress", &member.NextArgs{ID: w.id}, &struct{}{})
}

// Close releases the watcher, if its process runs.
func (w *Watcher) Close() {
	if w.proc.running() {
		w.proc.client.Go(member.Service+".Unwatch", &member.NextArgs{ID: w.id}, &struct{}{}, nil)
	}
}
