// Package csi provides the volumes of drivers that speak the Container Storage Interface: it is a
// volumes.Stager, and a plugins.Handler with which drivers register.
//
// It owns the CSINode object of its node, the places of upstream's kubelet below
// plugins/kubernetes.io/csi and kubernetes.io~csi in the directories of pods, and the names in the
// node's status volumesInUse.
//
// Invariants:
//   - A driver is asked for a volume only while the node's status names it as in use, and, where
//     the driver wants volumes attached, as attached.
//   - The calls of a driver for one volume follow one another, and the end of a pod does not cancel
//     them: many drivers go on regardless.
//   - Before a driver is asked to stage or publish, a record of it is on disk; it stays until the
//     driver has undone it, or has failed for certain without doing anything.
//   - A volume is unstaged when no pod of the node has it any more, by the records of package
//     volumes.
//
// It attaches nothing: the controller does.
package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/kubelet/volumes"
	"github.com/barque/barque/kubelet/volumes/hostmount"
)

// Tokens hands out tokens of the service accounts of pods.
type Tokens interface {
	Token(
		ctx context.Context, pod *v1.Pod, audience string, seconds int64,
	) (authenticationv1.TokenRequestStatus, time.Time, error)
}

// Config configures a Plugin.
type Config struct {
	NodeName string
	// RootDir is the kubelet's directory.
	RootDir string
	Client  kubernetes.Interface
	Claims  volumes.Claims
	Tokens  Tokens
	// Node returns the API server's Node object of this node, or nil while that is not known.
	Node func() *v1.Node
	// Look has the node's status written soon.
	Look   func()
	Mounts volumes.Mounts // hostmount.Mounter unless given
	// Retry has the failed volumes of a pod tried again at once. It must not block.
	Retry func(uid types.UID)
	// Event records the outcome for a volume as an event of an object.
	Event  func(on runtime.Object, kind, reason, message string)
	Logger *slog.Logger
	Now    func() time.Time // time.Now when nil
}

// Plugin calls CSI drivers.
type Plugin struct {
	Config
	places
	drivers   drivers
	objects   *objects
	metrics   *metrics
	informers informers.SharedInformerFactory
	specs     storagelisters.CSIDriverLister
	synced    cache.InformerSynced

	timeout  time.Duration   // of a call of a driver
	patience time.Duration   // with which a pod waits for a volume to be attached
	ctx      context.Context // ends with the process: calls of drivers go on until then
	stop     context.CancelCauseFunc
	running  sync.WaitGroup

	mu        sync.Mutex
	news      chan struct{} // closed when something has changed that is waited for
	busy      map[string]chan struct{}
	leaving   map[string]bool   // drivers that are gone, and still in the objects
	staged    map[string]string // by place: staged by this process, with this SELinux label
	published map[string]*published
	growing   map[string]*growth // by unique name
	orphans   map[v1.UniqueVolumeName]*orphan
	found     bool // the orphans are known
	records   func() ([]*volumes.Volume, error)
}

// published is a volume that this process has shown to a pod.
type published struct {
	at time.Time
	// renew is when a token of the driver must be replaced: zero for never.
	renew time.Time
}

var errStopped = errors.New("the kubelet ends")

// New returns a plugin. It touches nothing.
func New(config Config) *Plugin {
	if config.Mounts == nil {
		config.Mounts = hostmount.Mounter{}
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	factory := informers.NewSharedInformerFactory(config.Client, 0)
	specs := factory.Storage().V1().CSIDrivers()
	ctx, stop := context.WithCancelCause(context.Background())
	p := &Plugin{
		Config: config, places: places{config.RootDir}, drivers: drivers{byName: map[string]driver{}},
		objects: &objects{client: config.Client, node: config.NodeName}, metrics: newMetrics(),
		informers: factory, specs: specs.Lister(), synced: specs.Informer().HasSynced, timeout: callTimeout,
		patience: attachPatience, ctx: ctx, stop: stop,
		news: make(chan struct{}), busy: map[string]chan struct{}{}, leaving: map[string]bool{},
		staged:    map[string]string{},
		published: map[string]*published{}, growing: map[string]*growth{}, orphans: map[v1.UniqueVolumeName]*orphan{},
	}
	return p
}

var _ volumes.Stager = (*Plugin)(nil)

// Name implements volumes.Plugin.
func (*Plugin) Name() string { return pluginName }

// Provides implements volumes.Plugin.
func (*Plugin) Provides(v *volumes.Volume) bool {
	return v.PV != nil && v.PV.Spec.CSI != nil || v.PV == nil && v.Source != nil && v.Source.CSI != nil
}

// NeedsStaging implements volumes.Stager. Stage asks the driver whether it stages: it may not have
// registered yet.
func (*Plugin) NeedsStaging(*volumes.Volume) (bool, error) { return true, nil }

// StagingPlace implements volumes.Stager.
func (p *Plugin) StagingPlace(v *volumes.Volume) string { return p.staging(v) }

// Use gives the plugin the recorded volumes of the node's pods; see volumes.Manager.Remembered. It
// is called before Run.
func (p *Plugin) Use(records func() ([]*volumes.Volume, error)) { p.records = records }

// Changed is called when the node gets a volume, and when it is rid of it: the node's status
// has it soon.
func (p *Plugin) Changed(v *volumes.Volume) {
	if v.PV != nil && p.Provides(v) {
		p.Look()
	}
}

// Observe is called when the Node object has changed.
func (p *Plugin) Observe() { p.stir() }

// stir wakes all that wait for news.
func (p *Plugin) stir() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.news)
	p.news = make(chan struct{})
}

// until waits until done returns true. It calls done again after each change.
func (p *Plugin) until(ctx context.Context, done func() bool) error {
	for {
		p.mu.Lock()
		news := p.news
		p.mu.Unlock()
		if done() {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-p.ctx.Done():
			return errStopped
		}
	}
}

// one runs f, a call of a driver for a volume, while no other one runs for that volume. The wait
// for its turn ends with ctx, f itself does not.
func (p *Plugin) one(ctx context.Context, driver, handle, operation string, f func(ctx context.Context) error) error {
	key := string(uniqueName(driver, handle))
	for {
		if p.ctx.Err() != nil {
			return errStopped
		}
		p.mu.Lock()
		before := p.busy[key]
		if before == nil {
			break
		}
		p.mu.Unlock()
		select {
		case <-before:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-p.ctx.Done():
			return errStopped
		}
	}
	over := make(chan struct{})
	p.busy[key] = over
	p.mu.Unlock()
	var err error
	p.running.Go(func() { // ends within the time-out, or with the process
		call, cancel := context.WithTimeoutCause(p.ctx, p.timeout,
			fmt.Errorf("driver %s has not answered for %s", driver, p.timeout))
		defer cancel()
		began := time.Now()
		err = f(call)
		p.metrics.measure(driver, operation, began, err)
		p.mu.Lock()
		delete(p.busy, key)
		p.mu.Unlock()
		close(over)
	})
	select {
	case <-over:
		return asked(err)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// asked marks an error after which the driver is called ever more rarely.
func asked(err error) error {
	if err == nil {
		return nil
	}
	return &volumes.DriverError{Err: err}
}

// spec returns the CSIDriver object of a driver, or nil when there is none.
func (p *Plugin) spec(ctx context.Context, driver string) (*storagev1.CSIDriver, error) {
	if !p.synced() {
		wait, cancel := context.WithTimeoutCause(ctx, syncPatience,
			errors.New("the CSIDriver objects are not known yet: the API server has not answered"))
		defer cancel()
		if !cache.WaitForCacheSync(wait.Done(), p.synced) {
			return nil, context.Cause(wait)
		}
	}
	spec, err := p.specs.Get(driver)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return spec, err
}

const (
	// syncPatience is how long a volume waits for the CSIDriver objects.
	syncPatience = 10 * time.Second
	// attachPatience is how long a pod waits for a volume to be attached before the user
	// gets a message.
	attachPatience = 2*time.Minute + 3*time.Second
	// refreshEvery is how often drivers that want it are asked to publish again, and claims are
	// looked at.
	refreshEvery = time.Minute
)

// attachRequired reports whether the volumes of a driver are attached before they are used.
func attachRequired(spec *storagev1.CSIDriver) bool {
	return spec == nil || spec.Spec.AttachRequired == nil || *spec.Spec.AttachRequired
}

func isTrue(b *bool) bool { return b != nil && *b }
