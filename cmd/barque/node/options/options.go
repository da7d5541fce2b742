package options

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/barque/barque/apiserver"
	"github.com/barque/barque/apiserver/admission/registry"
	"github.com/barque/barque/apiserver/audit"
	"github.com/barque/barque/apiserver/authorizers"
	"github.com/barque/barque/apiserver/encryption/provider"
	"github.com/barque/barque/apiserver/logins"
	"github.com/barque/barque/apiserver/switches"
	"github.com/barque/barque/backups"
	"github.com/barque/barque/controllers"
	"github.com/barque/barque/edge/gateway"
	"github.com/barque/barque/internal/sdnotify"
	kubeletconfig "github.com/barque/barque/kubelet/config"
	"github.com/barque/barque/kubelet/kerneldefaults"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/network/nodeaddr"
	"github.com/barque/barque/network/overlay"
	"github.com/barque/barque/network/ranges"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/scheduler/config"
	"github.com/barque/barque/upgrade/release"
)

// StartAgain stops this node, and starts it again with the version that counts. Without a program
// that does that, as in tests, it does nothing.
func (o *Options) StartAgain(why string) {
	if o.Again != nil {
		o.Again(why)
	}
}

// Options of a node, as flags give them.
type Options struct {
	DataDir string
	Name    string
	// NodeIPs are the addresses at which other nodes reach this one. NodeExternalIPs are additional
	// addresses in its Node object. Each is one address, or one of each family. Empty NodeIPs are
	// detected.
	NodeIPs, NodeExternalIPs []string
	Overlay                  overlay.Config
	// WireGuardPort is where this node takes packets in WireGuard, if any node asks for that.
	WireGuardPort uint16
	// Network is the provider of the pod network: barque, or none for another plugin.
	Network string
	Zone    string
	// CloudProvider is ExternalCloud where a cloud-controller-manager of the user looks after nodes
	// and load balancers, and empty where there is no cloud.
	CloudProvider string
	Labels        map[string]string
	Taints        []string
	LogLevel      slog.Level
	Logs          Logs // the end of the log; nil if it is not kept
	// State is told to systemd; nil without it.
	State *sdnotify.Notifier
	// Again stops this node, and starts it again in the same process, with the version that counts.
	Again func(why string) `json:"-"`
	// ReleaseKeys are those by which this node believes releases.
	ReleaseKeys release.Keys `json:"-"`

	// Join is the address of a server to join; Token lets this node in.
	Join  string
	Token string

	// Replace lets this server take the place of a dead one of the same name. Wipe lets a server
	// with data join as a new one, if the cluster no longer counts it as a member.
	Replace, Wipe bool
	// Rejoin lets an agent forget its cluster's ID and join again, after that cluster was
	// recovered.
	Rejoin bool
	// Peers are where other servers are, HOST:PORT of their peer ports, for when their addresses
	// have changed.
	Peers []string
	// DeadServerCleanup is the time after which a dead server is removed from the store, if at
	// least MinVoters voters stay; 0 is never.
	DeadServerCleanup time.Duration
	MinVoters         int

	APIPort, PeerPort, KubeletPort uint16
	GossipPort                     uint16 // 0 until the node knows its cluster: the cluster's

	// ClusterSettings count on the first server only; the others get the cluster's.
	Settings Settings

	LogStore                 string        // how the store's log is kept: boltdb or wal
	DiskWriteTimeout         time.Duration // of the store's log; 0 is the store's default
	DiskReserve              int           // MiB of disk space reserved for a full disk; 0 is none
	SnapshotEntries          uint64        // log entries between two snapshots; 0 is the store's default
	ContainerRuntimeEndpoint string        // empty: containerd of our own
	StoreMemory              int64         // bytes that all objects may take in the store; 0: by this machine's memory
	RegistryDir              string
	VolumesDir               string // local volumes that the cluster makes
	KubeletRootDir           string // volumes of pods and sockets of plugins; DataDir/kubelet when empty
	DefaultStorageClass      string // created once, by a server; "none" creates none
	CgroupRoot               string
	NoNode                   bool // a server that runs no pods

	// Kubelet is the configuration of the node's kubelet; nil is the default.
	Kubelet *kubeletconfig.Configuration
	// KubeletIgnored are the fields of its files that do not count.
	KubeletIgnored []string
	// KubeletFiles are these files and directories.
	KubeletFiles []string

	// Profile is that of this start: "" or ProfileCIS. ProfileGiven is set when the operator gave
	// it.
	Profile      string
	ProfileGiven bool

	// Flags are the effective values of the command's flags, without secrets.
	Flags map[string]string

	// CAFile and CAKeyFile are those of an external CA, with which a new cluster begins.
	CAFile, CAKeyFile string

	// CertificateLifetime is the lifetime of certificates that this server issues, to itself and to
	// agents. CertificateGrace is the time after expiry in which an agent's certificate still gets
	// it a new one.
	CertificateLifetime, CertificateGrace time.Duration

	Tokens  TokenOptions   // of service accounts, on a server
	Serving ServingOptions // of this node's ports
	// Switches are the feature gates and versions of the API, on a server.
	Switches switches.Options

	// AgentCIDRs are the ranges of public addresses that agents may have without calling from them.
	AgentCIDRs []string
	// AgentPrefixes are those of AgentCIDRs, after Complete.
	AgentPrefixes []netip.Prefix `json:"-"`

	Times     Times
	Admission registry.Settings // of admission plugins, on a server
	// AnonymousPaths are the paths of the API that are served without credentials; empty is all.
	AnonymousPaths []string
	Limits         *apiserver.Limits // of requests to the API, on a server; nil is the default
	Audit          *audit.Options    // of the audit log, on a server; nil is the default
	// Logins and Authorization are the configured ways to log in and the order of authorizers, on a
	// server; nil is the default.
	Logins        *logins.Options
	Authorization *authorizers.Options
	// Providers are the file by which a server encrypts objects; nil is none.
	Providers *provider.Options
	Backups   backups.Options
	// Controllers are the choices among the controllers, and how they work, on a server.
	Controllers controllers.Settings
	// Scheduling is the policy of the scheduler, on a server; nil is the default.
	Scheduling *config.Policy
	Restore    backups.RestoreOptions

	// NoGateway switches the gateway of this node off. Gateway are its settings, the same on all
	// nodes.
	NoGateway bool
	Gateway   gateway.Settings
	// GatewayAccessLog is the file with a line for each request to the gateway; "" is none.
	GatewayAccessLog string

	// Detected is set by Complete if nobody gave NodeIPs. It makes Addresses out of NodeIPs and
	// NodeExternalIPs, and APIAddresses out of those of --api-address.
	Detected     bool               `json:"-"`
	Addresses    nodeaddr.Addresses `json:"-"`
	APIAddresses []netip.Addr       `json:"-"`

	// WrapLeaderClient wraps the transport of the leader's work of a term. It is nil in production.
	// Tests use it to stop a server between a controller's decision and its write.
	WrapLeaderClient func(term uint64, next http.RoundTripper) http.RoundTripper `json:"-"`
}

// shortestLifetime leaves certificates enough time for renewal after some failures.
const shortestLifetime = 30 * time.Second

// DefaultCertificateGrace is how long an agent may have been off for after its certificates ended.
const DefaultCertificateGrace = 90 * 24 * time.Hour

// Settings are the same on all nodes of a cluster.
type Settings struct {
	ClusterCIDRs ranges.Prefixes `json:"clusterCIDR"` // pods
	ServiceCIDRs ranges.Prefixes `json:"serviceCIDR"`
	Domain       string          `json:"domain"`
	// Profile is "" or ProfileCIS. The other settings never change; this one changes at a start.
	Profile string `json:"profile,omitempty"`
}

// DefaultSettings of a new cluster.
func DefaultSettings() Settings {
	return Settings{
		ClusterCIDRs: ranges.Prefixes{netip.MustParsePrefix("10.42.0.0/16")},
		ServiceCIDRs: ranges.Prefixes{netip.MustParsePrefix("10.43.0.0/16")},
		Domain:       "cluster.local",
	}
}

// APIAddr is the ClusterIP of the kubernetes Service: the first address.
func (s Settings) APIAddr() netip.Addr { return s.ServiceCIDRs.Primary().Masked().Addr().Next() }

// DNSAddr is the ClusterIP of cluster DNS: the tenth.
func (s Settings) DNSAddr() netip.Addr { return apiserver.DNSServiceAddress(s.ServiceCIDRs.Primary()) }

func (s Settings) validate() error {
	if err := errors.Join(s.ClusterCIDRs.Check("cluster CIDR", 24, 64),
		s.ServiceCIDRs.Check("service CIDR", 24, 120)); err != nil {
		return err
	}
	if len(s.ClusterCIDRs) != len(s.ServiceCIDRs) || s.ClusterCIDRs[0].Addr().Is6() != s.ServiceCIDRs[0].Addr().Is6() {
		return fmt.Errorf("cluster CIDR %s and service CIDR %s: want the same families, in the same order",
			s.ClusterCIDRs, s.ServiceCIDRs)
	}
	for _, pods := range s.ClusterCIDRs {
		for _, services := range s.ServiceCIDRs {
			if pods.Overlaps(services) {
				return fmt.Errorf("cluster CIDR %s and service CIDR %s overlap", pods, services)
			}
		}
	}
	if bad := validation.IsDNS1123Subdomain(s.Domain); len(bad) > 0 {
		return fmt.Errorf("cluster domain %q: %s", s.Domain, strings.Join(bad, "; "))
	}
	return nil
}

// ExternalCloud is the value of --cloud-provider for clusters in a cloud.
const ExternalCloud = "external"

// DefaultStorageClass is the name of the class for claims without one; noStorageClass asks for no
// class.
const DefaultStorageClass, noStorageClass = "local-path", "none"

// StorageClass is the name of the class to create, or "".
func (o *Options) StorageClass() string {
	if o.DefaultStorageClass == noStorageClass {
		return ""
	}
	return o.DefaultStorageClass
}

// ExitUsage is the exit code for a wrong option. A restart with the same options would fail again.
const ExitUsage = enroll.UsageCode

// Complete sets the defaults and validates the options.
func (o *Options) Complete() error {
	if os.Geteuid() != 0 {
		return errors.New(
			"barque needs root to run pods and set up their network: start it with sudo or as a system service")
	}
	if o.Name == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("this machine's name: %w; give one with --name", err)
		}
		o.Name = strings.ToLower(name)
	}
	if bad := validation.IsDNS1123Subdomain(o.Name); len(bad) > 0 {
		return enroll.WrongOption("node name %q: %s; give another one with --name", o.Name, strings.Join(bad, "; "))
	}
	if err := o.completeAddresses(); err != nil {
		return err
	}
	if err := o.completeAPIAddresses(); err != nil {
		return err
	}
	var err error
	if o.DataDir, err = filepath.Abs(o.DataDir); err != nil {
		return err
	}
	if o.CgroupRoot == "" {
		o.CgroupRoot = "/barque/" + o.Name
	}
	if o.Restore.File != "" {
		if o.Join != "" {
			return enroll.WrongOption("--restore-from begins a new cluster, --join joins one: give one of them")
		}
		if o.Restore.File, err = filepath.Abs(o.Restore.File); err != nil {
			return err
		}
		if o.Restore.KeyFile != "" {
			if o.Restore.KeyFile, err = filepath.Abs(o.Restore.KeyFile); err != nil {
				return err
			}
		}
	}
	if o.Restore.KeyFile != "" && o.Restore.File == "" {
		return enroll.WrongOption("--restore-key-file opens a backup: give --restore-from")
	}
	if o.CertificateLifetime == 0 {
		o.CertificateLifetime = pki.LeafLifetime
	}
	if o.CertificateLifetime < shortestLifetime || o.CertificateGrace < 0 {
		return enroll.WrongOption("--certificate-lifetime %s, --certificate-grace %s: want %s at least, and 0 at least",
			o.CertificateLifetime, o.CertificateGrace, shortestLifetime)
	}
	if err := errors.Join(o.Tokens.validate(), o.parseAgentCIDRs()); err != nil {
		return err
	}
	if err := o.checkGateway(); err != nil {
		return err
	}
	if err := o.checkKubelet(); err != nil {
		return err
	}
	if o.Kubelet != nil && o.Kubelet.ProtectKernelDefaults && !o.NoNode {
		if err := kerneldefaults.Check(kerneldefaults.Dir); err != nil {
			return err
		}
	}
	if o.Backups.Dir == "" {
		o.Backups.Dir = filepath.Join(o.DataDir, "snapshots")
	}
	if o.Backups.Every < 0 {
		return enroll.WrongOption("--snapshot-schedule %s: want an interval such as 12h; 0 makes none", o.Backups.Every)
	}
	if o.Backups.Every > 0 && o.Backups.Keep < 1 {
		return enroll.WrongOption("--snapshot-retention %d: want 1 at least; --snapshot-schedule 0 makes none",
			o.Backups.Keep)
	}
	if o.Backups.Unsealed && o.Backups.KeyFile != "" {
		return enroll.WrongOption(
			"--snapshot-key-file seals the scheduled backups, --snapshot-unsealed leaves them unsealed: give one of them")
	}
	if _, err := backups.ReadKey(o.Backups.KeyFile); err != nil {
		return fmt.Errorf("--snapshot-key-file: %w", err)
	}
	if o.RegistryDir == "" {
		o.RegistryDir = filepath.Join(o.DataDir, "registries")
	}
	if o.VolumesDir == "" {
		o.VolumesDir = filepath.Join(o.DataDir, "volumes")
	}
	if o.VolumesDir, err = filepath.Abs(o.VolumesDir); err != nil {
		return err
	}
	if o.KubeletRootDir == "" {
		o.KubeletRootDir = filepath.Join(o.DataDir, "kubelet")
	}
	if o.KubeletRootDir, err = filepath.Abs(o.KubeletRootDir); err != nil {
		return err
	}
	if o.DefaultStorageClass == "" {
		o.DefaultStorageClass = DefaultStorageClass
	}
	if bad := validation.IsDNS1123Subdomain(o.DefaultStorageClass); len(bad) > 0 {
		return enroll.WrongOption("--default-storage-class %q: %s", o.DefaultStorageClass, strings.Join(bad, "; "))
	}
	if err := o.completePeers(); err != nil {
		return err
	}
	if err := os.MkdirAll(o.DataDir, 0o755); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if err := o.Settings.validate(); err != nil {
		return enroll.WrongOption("%v", err)
	}
	return nil
}

// completePeers gives each peer a port.
func (o *Options) completePeers() error {
	for i, p := range o.Peers {
		if addr, err := netip.ParseAddr(p); err == nil {
			o.Peers[i] = netip.AddrPortFrom(addr, o.PeerPort).String()
		} else if _, err := netip.ParseAddrPort(p); err != nil {
			return enroll.WrongOption(
				"--peers %q: want the IP address of another server, with its peer port if that is not %d", p,
				o.PeerPort)
		}
	}
	return nil
}

// GossipHints are where gossip may find the peers.
func (o *Options) GossipHints() []netip.AddrPort {
	var hints []netip.AddrPort
	for _, p := range o.Peers {
		hints = append(hints, netip.AddrPortFrom(netip.MustParseAddrPort(p).Addr(), o.GossipPort))
	}
	return hints
}

// Addr is the address at which this node serves its ports.
func (o *Options) Addr() netip.Addr { return o.Addresses.Primary() }

func (o *Options) At(port uint16) netip.AddrPort { return netip.AddrPortFrom(o.Addr(), port) }

// Logs is the end of a node's log.
type Logs interface{ Bytes() []byte }

// Enrolling returns the options for joining or creating a cluster.
func (o *Options) Enrolling() *enroll.Options {
	return &enroll.Options{DataDir: o.DataDir, Name: o.Name, Address: o.Addr(), Labels: o.Labels, Join: o.Join,
		Token: o.Token, Replace: o.Replace, Wipe: o.Wipe, Rejoin: o.Rejoin, Ended: raftstore.Ended,
		APIPort: o.APIPort, PeerPort: o.PeerPort, GossipPort: o.GossipPort, KubeletPort: o.KubeletPort,
		CAFile: o.CAFile, CAKeyFile: o.CAKeyFile, Certificates: o.ownCertificates,
		Restore: enroll.Restore(o.Restore), ReadBackup: o.readBackup, Settings: o.settings}
}

// settings returns those of a new cluster: the backup's, or the options' if there is no backup.
func (o *Options) settings(ofBackup json.RawMessage) (json.RawMessage, error) {
	if ofBackup != nil {
		if err := json.Unmarshal(ofBackup, &o.Settings); err != nil {
			return nil, err
		}
	}
	return json.Marshal(o.Settings)
}

// readBackup reads the backup that a new cluster begins with.
func (o *Options) readBackup() (enroll.Backup, error) {
	about, secrets, err := backups.Read(&o.Restore)
	b := enroll.Backup{ClusterID: about.ClusterID, Created: about.Created, Revision: about.Revision, Items: about.Items,
		Settings: about.Settings}
	if about.Secrets {
		b.Secrets = secrets
	}
	return b, err
}

// SettingsOf are the settings of the node's cluster.
func SettingsOf(r *enroll.Record) (Settings, error) {
	var s Settings
	if err := json.Unmarshal(r.Cluster.Settings, &s); err != nil {
		return s, fmt.Errorf("%s: the cluster's settings: %w", r.Path(), err)
	}
	return s, nil
}
