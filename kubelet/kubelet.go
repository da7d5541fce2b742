// Package kubelet runs the pods that are bound to one node, and serves their logs and streams.
//
// It wires the node's rooms together: pods (the workers), cri (the runtime), volumes, probes,
// images, cgroups, status, node (registration) and server (port 10250). It sees the cluster only
// through its client. Several kubelets may run on one machine, each with its own directories,
// cgroup root and addresses.
//
// Invariant: ending a kubelet ends no pod. One that starts adopts what runs.
//
// It reads no flags, starts no container runtime and sets up no network: package
// kubelet/containerd and package network do.
package kubelet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/barque/barque/internal/connlimit"
	"github.com/barque/barque/internal/lastevents"
	"github.com/barque/barque/kubelet/admission"
	"github.com/barque/barque/kubelet/allocation"
	"github.com/barque/barque/kubelet/cgroups"
	"github.com/barque/barque/kubelet/config"
	"github.com/barque/barque/kubelet/cri"
	"github.com/barque/barque/kubelet/csi"
	"github.com/barque/barque/kubelet/dra"
	"github.com/barque/barque/kubelet/eviction"
	"github.com/barque/barque/kubelet/exits"
	"github.com/barque/barque/kubelet/images"
	"github.com/barque/barque/kubelet/localvolumes"
	"github.com/barque/barque/kubelet/logs"
	"github.com/barque/barque/kubelet/metrics"
	"github.com/barque/barque/kubelet/node"
	"github.com/barque/barque/kubelet/plugins"
	"github.com/barque/barque/kubelet/pods"
	"github.com/barque/barque/kubelet/pods/podlogs"
	"github.com/barque/barque/kubelet/pods/runtimeconfig"
	"github.com/barque/barque/kubelet/probes"
	"github.com/barque/barque/kubelet/server"
	"github.com/barque/barque/kubelet/shutdown"
	"github.com/barque/barque/kubelet/starts"
	"github.com/barque/barque/kubelet/static"
	"github.com/barque/barque/kubelet/status"
	"github.com/barque/barque/kubelet/usage"
	"github.com/barque/barque/kubelet/volumes"
	"github.com/barque/barque/kubelet/volumes/apiobjects"
	"github.com/barque/barque/kubelet/volumes/localdirs"
	"github.com/barque/barque/kubelet/volumes/selinux"
)

// Config configures a kubelet.
type Config struct {
	NodeName string
	Hostname string       // the node's name unless given
	NodeIPs  []netip.Addr // the first one is the node's primary address
	// NodeExternalIPs are the external addresses in the Node object.
	NodeExternalIPs []netip.Addr
	// ExternalCloud leaves it to a cloud's controller to initialize the node: see node.Config.
	ExternalCloud bool
	Labels        map[string]string
	Taints        []v1.Taint // set at the first registration of the node
	Version       string     // as Kubernetes counts, such as v1.37.2+barque

	Client kubernetes.Interface // as system:node:<NodeName>
	// Services lists the services for the environment of containers. Both may be nil.
	Services       corelisters.ServiceLister
	ServicesSynced cache.InformerSynced
	// Pods holds the pods that are bound to this node; the API server shows a node no others. The
	// caller starts it, and may share it.
	Pods cache.SharedIndexInformer

	// Network gets the addresses of pods before their containers run. It may be nil.
	Network pods.Network

	// RuntimeEndpoint is the runtime's CRI socket, unix:///path. RuntimeName is the prefix of
	// container IDs; containerd when empty.
	RuntimeEndpoint string
	RuntimeName     string
	// ImportImages imports the images of a tar into the runtime; nil when the runtime is not the
	// node's own.
	ImportImages func(ctx context.Context, tar io.Reader) ([]string, error)
	// ForServers are handlers of the node's own server, by path, for servers of the cluster alone.
	ForServers map[string]http.Handler
	// Exits has records of how containers ended, for ends that the runtime has lost; none when
	// empty.
	Exits exits.Dir

	RootDir    string // files of pods
	VolumesDir string // local volumes that the cluster makes; none when empty
	LogDir     string // logs of pods
	LogLinkDir string // links to the logs of containers, for collectors; none when empty
	OldLogDir  string // where an earlier version had the logs of pods; none when empty
	CgroupRoot string // for example /barque/<node>
	// CgroupParents are the groups above it that are Barque's own.
	CgroupParents []string

	ClusterDNS    []netip.Addr
	ClusterDomain string
	ResolvConf    string // /etc/resolv.conf unless given

	// ServerAddress is the address, host:port, of the node's own server; ServerTLS has its
	// certificate and, as ClientCAs, the cluster's CA (see server.Config). Without an address there
	// is no server.
	ServerAddress string
	ServerTLS     *tls.Config
	ServerLimits  connlimit.Limits // of its clients without credentials
	// Revoked returns the reason why a genuine client certificate is not accepted, or nil.
	// RevokedChanged return channels that are closed when that may have changed.
	Revoked        func(leaf *x509.Certificate) error
	RevokedChanged []func() <-chan struct{}

	// Settings are the user's configuration; the defaults when nil. They are complete and valid.
	Settings *config.Configuration

	// SchedulingDelay is the scheduling latency of this machine's processes, by which the starts of
	// pods are paced. Without it they are not paced.
	SchedulingDelay func() time.Duration

	// Logind connects to the source of shutdown signals; to systemd's logind over the system's
	// D-Bus when nil.
	Logind func(context.Context) (shutdown.Logind, error)

	// Found is called with the node's faults after each check: every ten seconds, and more often
	// while the node is not ready. It may be nil.
	Found func(Faults)
	// Moved is called when the internal addresses differ from those of the Node object. It
	// may be nil.
	Moved func(before, now []string)

	// Collectors are other components' metrics of this node, which its server shows beside its own.
	Collectors []prometheus.Collector

	Logger *slog.Logger
}

// Faults are the faults that a node finds with itself.
type Faults = node.Faults

// Kubelet is one node's agent.
type Kubelet struct {
	config       Config
	runtime      *cri.Client
	meters       *metrics.Metrics
	pods         *pods.Manager
	allocations  *allocation.Manager
	mirrors      *static.Mirrors
	static       *static.Source // nil without a directory
	eviction     *eviction.Manager
	shutdown     *shutdown.Manager
	probes       *probes.Manager
	objects      *apiobjects.WatchedObjects
	bundles      *apiobjects.WatchedBundles
	certificates *apiobjects.RequestedCertificates
	status       *status.Manager
	devices      *dra.Manager
	drivers      *csi.Plugin
	plugins      *plugins.Registry
	node         *node.Reporter
	server       *server.Server      // nil without an address
	local        *localvolumes.Agent // nil without local volumes
	own          atomic.Pointer[v1.Node]
	logs         *logs.Rotator
	garbage      *images.Collector
	events       record.EventBroadcaster
	listed       chan struct{} // closed once the API server's pods are known
	registered   chan struct{} // closed once the API server's Node is known
	appArmor     bool          // the host confines processes with it
}

// New prepares a kubelet. It makes its directories and starts nothing.
func New(c Config) (*Kubelet, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	for _, dir := range []string{c.RootDir, c.LogDir} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return nil, fmt.Errorf("make the kubelet's directory: %w", err)
		}
	}
	machine, err := node.Inspect()
	if err != nil {
		return nil, fmt.Errorf("look at this machine: %w", err)
	}
	meters := metrics.New()
	client, err := cri.Dial(c.RuntimeEndpoint, meters.Interceptor())
	if err != nil {
		return nil, err
	}
	client.UseExits(c.Exits)
	k := &Kubelet{config: c, runtime: client, meters: meters, appArmor: node.AppArmor(), listed: make(chan struct{}),
		registered: make(chan struct{})}
	if err := k.assemble(machine); err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return k, nil
}

func (c *Config) complete() error {
	switch {
	case c.NodeName == "":
		return errors.New("kubelet: no node name is given")
	case len(c.NodeIPs) == 0:
		return errors.New("kubelet: no address of the node is given")
	case c.Client == nil:
		return errors.New("kubelet: no client is given")
	case c.Pods == nil:
		return errors.New("kubelet: no informer of the node's pods is given")
	case c.RootDir == "" || c.LogDir == "":
		return errors.New("kubelet: no directories for pods and logs are given")
	}
	if c.Hostname == "" {
		c.Hostname = c.NodeName
	}
	if c.RuntimeName == "" {
		c.RuntimeName = "containerd"
	}
	if c.Settings == nil {
		c.Settings = config.Default()
	}
	if c.ResolvConf == "" {
		c.ResolvConf = "/etc/resolv.conf"
	}
	if c.Logind == nil {
		c.Logind = shutdown.SystemBus
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

// assemble makes the components and connects them.
func (k *Kubelet) assemble(machine node.Machine) error {
	c := &k.config
	set := c.Settings
	reserved, err := config.Reserved(set)
	if err != nil {
		return err
	}
	groups, err := cgroups.New(cgroups.Config{
		Root: c.CgroupRoot, PodPidsLimit: max(*set.PodPidsLimit, 0),
		MilliCPU: int64(machine.CPUs)*1000 - reserved.Cpu().MilliValue(), Parents: c.CgroupParents,
	})
	if err != nil {
		return err
	}
	thresholds, err := config.Thresholds(set)
	if err != nil {
		return err
	}
	logSize, err := config.LogMaxSize(set)
	if err != nil {
		return err
	}
	taints := slices.Concat(c.Taints, set.RegisterWithTaints)
	port, err := c.port()
	if err != nil {
		return err
	}
	hostIPs := texts(c.NodeIPs)
	k.node, err = node.New(node.Config{
		Name: c.NodeName, IPs: hostIPs, ExternalIPs: texts(c.NodeExternalIPs), Hostname: c.Hostname,
		ProviderID: set.ProviderID, Labels: c.Labels, Taints: taints,
		ExternalCloud: c.ExternalCloud,
		Version:       c.Version, Port: port, MaxPods: config.MaxPods(set, machine.CPUs),
		Reserved: eviction.Reserve(reserved, thresholds, node.Capacity(machine, c.RootDir)), RootDir: c.RootDir,
		Machine: machine,
		Client:  c.Client, Runtime: k.runtime, Images: k.runtime, Found: c.Found, Moved: c.Moved, Short: k.short,
		Down:  func() bool { return k.shutdown.Begun() },
		InUse: func() ([]v1.UniqueVolumeName, bool) { return k.drivers.InUse() }, Logger: c.Logger,
	})
	if err != nil {
		return err
	}
	k.events = record.NewBroadcaster()
	recorder := podEvents{k.events.NewRecorder(scheme.Scheme, v1.EventSource{Component: "kubelet", Host: c.NodeName})}

	nodeEvent := func(kind, reason, message string) {
		recorder.recorder.Event(&v1.ObjectReference{Kind: "Node", Name: c.NodeName, UID: types.UID(c.NodeName)}, kind,
			reason, message)
	}

	wake := func(uid types.UID) { k.pods.Wake(uid) }
	retry := func(uid types.UID) { k.pods.Retry(uid) }
	k.objects = apiobjects.NewObjects(c.Client, retry)
	k.bundles = apiobjects.NewTrustBundles(c.Client, retry)
	k.certificates = apiobjects.NewCertificates(apiobjects.CertificatesConfig{
		Client: c.Client, NodeName: c.NodeName, Changed: retry, Logger: c.Logger,
		Tell: func(pod *v1.Pod, kind, reason, message string) { recorder.Event(pod, nil, kind, reason, message) },
	})
	local, err := k.localVolumes()
	if err != nil {
		return err
	}
	puller := images.NewPuller(images.Config{Images: k.runtime, Secrets: k.objects, Events: recorder, Logger: c.Logger,
		Parallel: int(*set.MaxParallelImagePulls), QPS: float32(*set.RegistryPullQPS), Burst: int(set.RegistryBurst)})
	tokens, claims := apiobjects.NewTokens(c.Client, nil), volumes.RequestedClaims{Client: c.Client}
	k.drivers = csi.New(csi.Config{
		NodeName: c.NodeName, RootDir: c.RootDir, Client: c.Client, Claims: claims, Tokens: tokens, Node: k.own.Load,
		Look:  k.node.Look,
		Retry: retry, Event: recorder.recorder.Event, Logger: c.Logger,
	})
	files := volumes.New(volumes.Config{
		RootDir: c.RootDir, Objects: k.objects, Tokens: tokens, Claims: claims, Node: k.own.Load,
		Images: volumeImages{puller, k.runtime}, Local: local,
		Drivers: k.drivers, Changed: k.drivers.Changed, Bundles: k.bundles, Certificates: k.certificates,
		Allocatable: k.node.Allocatable,
		FileLabel:   selinux.OfHost(),
	})
	k.drivers.Use(files.Records)
	if local != nil {
		k.local = localvolumes.New(localvolumes.Config{
			NodeName: c.NodeName, Client: c.Client, Directories: local, InUse: files.InUse, Logger: c.Logger})
	}
	k.devices, err = dra.New(dra.Config{NodeName: c.NodeName, Client: c.Client, Dir: c.RootDir, Logger: c.Logger})
	if err != nil {
		return err
	}
	// Drivers keep their sockets in a directory beside it.
	if err := os.MkdirAll(filepath.Join(c.RootDir, "plugins"), 0o750); err != nil {
		return fmt.Errorf("make the directory of plugins: %w", err)
	}
	k.plugins, err = plugins.New(filepath.Join(c.RootDir, "plugins_registry"),
		map[string]plugins.Handler{registerapi.DRAPlugin: k.devices, registerapi.CSIPlugin: k.drivers}, c.Logger)
	if err != nil {
		return err
	}
	k.probes = probes.New(probes.Config{
		Exec: k.runtime, Changed: wake, Logger: c.Logger,
		Unhealthy: func(pod *v1.Pod, container *v1.Container, message string) {
			recorder.Event(pod, container, v1.EventTypeWarning, "Unhealthy", message)
		},
	})
	k.allocations, err = allocation.New(allocation.Config{
		File: filepath.Join(c.RootDir, "allocated_pods_state"), Node: k.node.Node, Newest: k.node.Newest, Host: k.host,
		Wake: wake, Logger: c.Logger,
		Preempt: func(uid types.UID) {
			k.pods.Evict(uid,
				pods.Eviction{Reason: "Preempting", Message: "Preempted in order to admit critical pod",
					Grace: preemptionGrace})
		},
	})
	if err != nil {
		return err
	}
	statuses := status.New(c.Client, c.Logger)
	k.status = statuses
	k.mirrors = static.NewMirrors(
		static.MirrorsConfig{Client: c.Client, Node: k.node.Registered, Status: statuses, Wake: wake, Logger: c.Logger})
	var pacer pods.Pacer
	if c.SchedulingDelay != nil {
		pacer = starts.New(starts.Config{CPUs: machine.CPUs, Delay: c.SchedulingDelay})
	}
	podLogs := &podlogs.Dirs{Dir: c.LogDir, LinkDir: c.LogLinkDir, Owner: c.RootDir}
	k.pods = pods.New(pods.Config{
		Starts:  pacer,
		Runtime: k.runtime, Images: k.runtime, Volumes: files, Cgroups: k.meters.Cgroups(groups), Devices: k.devices,
		Probes: k.probes, Network: c.Network,
		Puller: k.meters.Puller(puller), Meter: k.meters,
		Status: k.meters.Status(k.mirrors), Events: recorder, Allocator: k.allocations, HostIPs: hostIPs,
		RuntimeName: c.RuntimeName, Logger: c.Logger,
		Logs: podLogs,
		Configs: &runtimeconfig.Builder{
			Volumes: files, Cgroups: groups, Devices: k.devices, Objects: k.objects, Services: k.services,
			Logs:       podLogs,
			ClusterDNS: texts(c.ClusterDNS), ClusterDomain: c.ClusterDomain, ResolvConf: c.ResolvConf,
			NodeHostname: c.Hostname, Allocatable: k.node.Allocatable, MemoryBytes: machine.MemoryBytes,
			LowestOOM: cgroups.LowestOOMScoreAdj(), SeccompDefault: *set.SeccompDefault,
		},
	})
	if c.OldLogDir != "" {
		if err := podLogs.Adopt(c.OldLogDir); err != nil {
			return err
		}
	}
	k.logs = logs.New(
		logs.Config{Runtime: k.runtime, MaxSize: logSize, MaxFiles: int(*set.ContainerLogMaxFiles), Logger: c.Logger})
	meter := usage.New(k.runtime, groups, nil)
	k.garbage = images.NewCollector(images.CollectorConfig{
		Images: k.runtime, Containers: k.runtime, Logger: c.Logger,
		HighPercent: int(*set.ImageGCHighThresholdPercent), LowPercent: int(*set.ImageGCLowThresholdPercent),
		MinAge: set.ImageMinimumGCAge.Duration})
	k.eviction = eviction.New(eviction.Config{
		Measure: &eviction.Machine{Runtime: k.runtime, Usage: meter, RootDir: c.RootDir, PodDir: files.PodDir,
			LogDir: podLogs.PodDir},
		Thresholds: thresholds, Transition: set.EvictionPressureTransitionPeriod.Duration,
		MaxPodGrace: time.Duration(set.EvictionMaxPodGracePeriod) * time.Second,
		Pods:        k.pods.Active, Gone: k.pods.Gone, Free: k.free, Changed: k.node.Look, Logger: c.Logger,
		Evict: func(uid types.UID, message string, grace time.Duration) bool {
			return k.pods.Evict(uid, pods.Eviction{Reason: "Evicted", Message: message, Grace: grace})
		},
		Evicted:   func(s eviction.Signal) { k.meters.Evicted(string(s)) },
		NodeEvent: func(reason, message string) { nodeEvent(v1.EventTypeWarning, reason, message) },
	})
	for _, t := range thresholds {
		k.meters.Watches(string(t.Signal))
	}
	k.shutdown = shutdown.New(shutdown.Config{
		Periods: shutdown.Periods(set), Pods: endedPods{k.pods}, Released: k.released, Connect: c.Logind,
		Changed: k.node.Look,
		File:    filepath.Join(c.RootDir, "graceful_node_shutdown_state"), Logger: c.Logger,
		NodeEvent: func(reason, message string) { nodeEvent(v1.EventTypeNormal, reason, message) },
	})
	if set.StaticPodPath != "" {
		k.static = static.NewSource(
			static.SourceConfig{Dir: set.StaticPodPath, NodeName: c.NodeName, Every: set.FileCheckFrequency.Duration,
				Pods: k.pods, Mirrors: k.mirrors, Logger: c.Logger})
	}
	if c.ServerAddress == "" {
		return nil
	}
	k.server, err = server.New(server.Config{
		NodeName: c.NodeName, Address: c.ServerAddress, TLS: c.ServerTLS, Limits: c.ServerLimits, Revoked: c.Revoked,
		RevokedChanged: c.RevokedChanged, Client: c.Client, Pods: k.pods,
		Runtime: k.runtime, ImportImages: c.ImportImages, ForServers: c.ForServers, Usage: meter, RootDir: c.RootDir,
		Volumes:  files,
		Settings: set, Healthy: k.pods.Healthy, Probes: k.probes,
		Collectors: slices.Concat(c.Collectors, k.meters.Collectors(), k.drivers.Collectors(), k.shutdown.Collectors()),
		Logger:     c.Logger,
	})
	return err
}

// endedPods are the pods of the node during a shutdown.
type endedPods struct{ *pods.Manager }

// End implements shutdown.Pods.
func (e endedPods) End(uid types.UID, within time.Duration) {
	e.Evict(uid, pods.Eviction{Reason: shutdown.Reason, Message: shutdown.Message, Grace: within, Quiet: true})
	e.Hasten(uid, within)
}

// Registered is closed once the API server has the Node.
func (k *Kubelet) Registered() <-chan struct{} { return k.registered }

// released reports whether the API server knows which volumes the node is rid of.
func (k *Kubelet) released() bool {
	node := k.own.Load()
	inUse, known := k.drivers.InUse()
	return node == nil || !known ||
		!slices.ContainsFunc(node.Status.VolumesInUse,
			func(name v1.UniqueVolumeName) bool { return !slices.Contains(inUse, name) })
}

// volumeImages pulls the images of volumes, and looks them up.
type volumeImages struct {
	*images.Puller
	*cri.Client
}

// localVolumes are the directories of local volumes, or nil when this node has none.
func (k *Kubelet) localVolumes() (*localdirs.Dirs, error) {
	if k.config.VolumesDir == "" {
		return nil, nil
	}
	return localdirs.New(k.config.VolumesDir, localvolumes.NewRecord(k.config.Client, k.config.Logger))
}

// port returns the port of the node's server that the Node object announces.
func (c *Config) port() (int32, error) {
	if c.ServerAddress == "" {
		return 0, nil
	}
	_, text, err := net.SplitHostPort(c.ServerAddress)
	if err != nil {
		return 0, fmt.Errorf("address of the node server: %w", err)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("address of the node server: port %q: %w", text, err)
	}
	return int32(port), nil
}

func texts(addrs []netip.Addr) []string {
	list := make([]string, len(addrs))
	for i, a := range addrs {
		list[i] = a.String()
	}
	return list
}

// host returns the properties of this machine for the admission of pods.
func (k *Kubelet) host() admission.Input {
	return admission.Input{UnsafeSysctls: k.config.Settings.AllowedUnsafeSysctls, AppArmor: k.appArmor,
		Pressure: k.short(), ShuttingDown: k.shutdown.Begun()}
}

// short returns the pressure conditions of the node.
func (k *Kubelet) short() []v1.NodeConditionType { return k.eviction.Conditions() }

// preemptionGrace is the grace period of a pod that makes room for a critical one.
const preemptionGrace = 30 * time.Second

// free removes dead containers and unused images.
func (k *Kubelet) free(ctx context.Context) error {
	return errors.Join(k.pods.RemoveDead(ctx), k.garbage.RemoveUnused(ctx))
}

// services lists the services for the environment of a namespace's pods.
func (k *Kubelet) services(namespace string) []*v1.Service {
	if k.config.Services == nil {
		return nil
	}
	list, err := k.config.Services.Services(namespace).List(labels.Everything())
	if err != nil {
		k.config.Logger.Warn("cannot list services", "namespace", namespace, "err", err)
	}
	if namespace != metav1.NamespaceDefault {
		if api, err := k.config.Services.Services(metav1.NamespaceDefault).Get("kubernetes"); err == nil {
			list = append(list, api)
		}
	}
	return list
}

// Run runs the node until ctx ends. Pods go on running then.
func (k *Kubelet) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	writeLast := lastevents.Start(k.events,
		limitedEvents(&typedcorev1.EventSinkImpl{Interface: k.config.Client.CoreV1().Events("")}, k.config.Settings))
	var parts sync.WaitGroup
	errs := make(chan error, 18)
	run := func(name string, part func(context.Context) error) {
		parts.Go(func() { // ends with ctx
			if err := part(ctx); err != nil && ctx.Err() == nil {
				err = fmt.Errorf("kubelet: %s: %w", name, err)
				errs <- err
				cancel(err)
			}
		})
	}
	run("node", k.node.Run)
	run("status", k.status.Run)
	run("own node", k.watchNode)
	run("devices", k.devices.Run)
	run("CSI drivers", k.drivers.Run)
	run("plugins", k.plugins.Run)
	run("pods", k.pods.Run)
	run("logs", k.logs.Run)
	run("images", k.garbage.Run)
	run("eviction", k.eviction.Run)
	run("shutdown", k.shutdown.Run)
	run("mirror pods", k.mirrors.Run)
	run("static pods", k.watchManifests)
	if k.server != nil {
		run("server", k.server.Run)
	}
	if k.local != nil {
		run("local volumes", k.local.Run)
	}
	run("assigned pods", k.watchPods)
	<-ctx.Done()
	parts.Wait()
	k.probes.Close()
	k.objects.Close()
	k.bundles.Close()
	k.certificates.Close()
	writeLast()
	close(errs)
	err := errors.Join(k.runtime.Close(), <-errs)
	return err
}

// only lists and watches the one kind of objects that a field selects.
func only[L runtime.Object](client kubernetes.Interface, selector fields.Selector,
	list func(context.Context, metav1.ListOptions) (L, error),
	follow func(context.Context, metav1.ListOptions) (watch.Interface, error)) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			opts.FieldSelector = selector.String()
			return list(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			opts.FieldSelector = selector.String()
			return follow(ctx, opts)
		},
	}, client)
}

// watchNode follows this node's own object.
func (k *Kubelet) watchNode(ctx context.Context) error {
	nodes := k.config.Client.CoreV1().Nodes()
	known := sync.OnceFunc(func() { close(k.registered) })
	observe := func(obj any) {
		if n, ok := obj.(*v1.Node); ok && n.Name == k.config.NodeName {
			k.own.Store(n)
			k.drivers.Observe()
			k.node.Observe(n)
			known()
			if k.local != nil {
				k.local.Observe(n)
			}
		}
	}
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: only(k.config.Client, fields.OneTermEqualSelector("metadata.name", k.config.NodeName),
			nodes.List, nodes.Watch),
		ObjectType: &v1.Node{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    observe,
			UpdateFunc: func(_, obj any) { observe(obj) },
			DeleteFunc: func(any) { k.node.Forget() },
		},
	})
	controller.RunWithContext(ctx)
	return nil
}

// servicesPatience bounds the wait for the first list of services. A container that starts without
// the variables of some services is better than none.
const servicesPatience = 10 * time.Second

// manifestsPatience bounds the wait for the API server's mirrors of static pods, which have their
// earlier status. Static pods run without an API server, too.
const manifestsPatience = 10 * time.Second

// watchManifests runs the static pods.
func (k *Kubelet) watchManifests(ctx context.Context) error {
	if k.static == nil {
		k.mirrors.None()
		return nil
	}
	timer := time.NewTimer(manifestsPatience)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-k.listed:
	case <-timer.C:
	}
	return k.static.Run(ctx)
}

// followed reports to the pods' manager that all pods of the API server are known, once the labels
// and taints are known by which new pods are decided; then the same for pods of manifests.
func (k *Kubelet) followed(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-k.registered:
	}
	k.pods.Synced()
	if k.static != nil {
		select {
		case <-ctx.Done():
			return
		case <-k.static.Known():
		}
	}
	k.pods.Complete()
}

// watchPods follows the pods that are bound to this node.
func (k *Kubelet) watchPods(ctx context.Context) error {
	if k.config.ServicesSynced != nil && !k.config.ServicesSynced() {
		wait, cancel := context.WithTimeout(ctx, servicesPatience)
		cache.WaitForCacheSync(wait.Done(), k.config.ServicesSynced)
		cancel()
	}
	mine := func(obj any) (*v1.Pod, bool) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		pod, ok := obj.(*v1.Pod)
		return static.FromAPI(pod), ok && pod.Spec.NodeName == k.config.NodeName
	}
	update := func(obj any) {
		switch pod, ok := mine(obj); {
		case !ok:
		case static.IsMirror(pod):
			k.mirrors.Observe(pod, false)
		default:
			k.pods.Update(pod)
		}
	}
	remove := func(pod *v1.Pod) {
		if static.IsMirror(pod) {
			k.mirrors.Observe(pod, true)
		} else {
			k.pods.Remove(pod)
		}
	}
	registration, err := k.config.Pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: update,
		// A pod may have been deleted and created again under its name between two events.
		UpdateFunc: func(old, obj any) {
			if was, ok := mine(old); ok && was.UID != obj.(*v1.Pod).UID {
				remove(was)
			}
			update(obj)
		},
		DeleteFunc: func(obj any) {
			if pod, ok := mine(obj); ok {
				remove(pod)
			}
		},
	})
	if err != nil {
		if ctx.Err() != nil {
			return nil // the informer's owner may have ended it first
		}
		return fmt.Errorf("watch pods: %w", err)
	}
	defer func() { _ = k.config.Pods.RemoveEventHandler(registration) }() // fails only for another informer's
	// It has synced when every pod of the first list was handled.
	if cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		k.mirrors.Synced()
		close(k.listed)
		k.followed(ctx)
	}
	<-ctx.Done()
	return nil
}
