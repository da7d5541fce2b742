package apiserver

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/storage/value"

	barqueadmission "github.com/barque/barque/apiserver/admission"
	"github.com/barque/barque/apiserver/admission/registry"
	"github.com/barque/barque/apiserver/audit"
	"github.com/barque/barque/apiserver/authn"
	"github.com/barque/barque/apiserver/authorizers"
	"github.com/barque/barque/apiserver/gatewayauth"
	"github.com/barque/barque/apiserver/nodeauth"
	"github.com/barque/barque/apiserver/nodeleases"
	"github.com/barque/barque/apiserver/pageauth"
	"github.com/barque/barque/apiserver/resource"
	"github.com/barque/barque/apiserver/secureport"
	"github.com/barque/barque/apiserver/services"
	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/apiserver/switches"
	"github.com/barque/barque/internal/connlimit"
	"github.com/barque/barque/internal/tlsoptions"
)

// Config is everything that a server is told. Fields without a word on their default are required.
type Config struct {
	// Name of this server.
	Name string
	// Store holds the objects. The caller closes it, after Run has returned.
	Store storage.Backend
	// Resources that are served; nil means all of DefaultResources.
	Resources []resource.Resource

	// Listener on which the API is served, without TLS: the server adds it.
	Listener net.Listener
	// Advertise is the address at which other nodes reach this server.
	Advertise netip.AddrPort
	// Certificate gives the serving certificate. It is asked again every minute.
	Certificate func() (*tls.Certificate, error)
	// ClientCA gives the PEM bundle of the authorities for client certificates. It is asked for
	// each certificate that is verified.
	ClientCA func() ([]byte, error)
	// ProxyCA gives the PEM bundle of the authorities for ProxyClient. Extension API servers
	// believe their certificates whichever user they name, so they had better sign nothing else.
	// nil: those of ClientCA.
	ProxyCA func() ([]byte, error)
	// Renewed returns a channel that is closed when Certificate or the authorities are new ones,
	// which is used at once then. nil leaves it at every minute.
	Renewed func() <-chan struct{}
	// Revoked returns the reason why a genuine client certificate counts no more, or nil.
	// RevokedChanged returns a channel that is closed when that may have changed: requests that are
	// answered for long, such as watches, end then if their certificate is revoked. nil of both
	// revokes none.
	Revoked        func(leaf *x509.Certificate) error
	RevokedChanged func() <-chan struct{}
	// KubeletClient gives the TLS configuration for connections to kubelets, another one when the
	// CAs have changed; nil means that pods/log, exec, attach, port-forward and the proxies are not
	// served.
	KubeletClient func() *tls.Config
	// IsKubelet returns why the peer of such a connection is not the kubelet of the node. It is
	// required with KubeletClient.
	IsKubelet func(node *corev1.Node, peer tls.ConnectionState) error

	// NodeAddress returns the reason why a node may not write an address into its Node, or nil; nil
	// permits all that others can reach.
	NodeAddress func(node string, kind corev1.NodeAddressType, addr netip.Addr) error

	// ProxyClient is the certificate by which extension API servers know that a request, with the
	// user named in its headers, comes from this server. Without one they are not told the user.
	ProxyClient CertificateFiles

	// ServiceAccounts says how service-account tokens are signed.
	ServiceAccounts ServiceAccounts
	// TokenFile is a file of static tokens; "" means none.
	TokenFile string
	// Logins are the configured ways to log in; nil means that there are none. The owner runs them.
	Logins authn.Logins
	// PageSessions are the log-ins of the page; nil means that there are none.
	PageSessions pageauth.Sessions
	// GatewayNames says which Secrets and ConfigMaps the gateway may read; nil is none.
	GatewayNames gatewayauth.Names
	// NeedsPassword says which Secrets nodes may read for their BGP sessions; nil is none.
	NeedsPassword nodeauth.NeedsPassword
	// IngressProblems returns the annotations of an Ingress that have no effect, to warn its
	// writers; nil is none.
	IngressProblems func(*networkingv1.Ingress) []string
	// Authorizers are in the configured order; nil means Node and RBAC. Their owner runs them.
	Authorizers *authorizers.Authorizers
	// NoAnonymous refuses requests without credentials. Otherwise they are the user
	// system:anonymous, on AnonymousPaths if there are any, else everywhere, and RBAC decides.
	NoAnonymous    bool
	AnonymousPaths []string

	// ServiceCIDR is the range of ClusterIPs; its first address is the kubernetes Service's. It is
	// that of the ServiceCIDR object "kubernetes"; more ranges come as objects.
	ServiceCIDR netip.Prefix
	// SecondaryServiceCIDR is the range of the other family; the zero value means that the cluster
	// has one family.
	SecondaryServiceCIDR netip.Prefix
	// Definitions are CustomResourceDefinitions of the cluster, in YAML: see definitions.Ensure.
	Definitions [][]byte
	// NodePorts is the range of node ports; the zero value means 30000-32767.
	NodePorts PortRange
	// TolerationSeconds is how long pods that say nothing else stay on a node that is not ready or
	// unreachable; nil means admission.DefaultTolerationSeconds for both.
	TolerationSeconds *TolerationSeconds

	// Admission chooses the admission plugins; the zero value means those that are on by default.
	Admission registry.Settings

	// SignsOfLife tells when nodes were last heard of, which the Leases in kube-node-lease show;
	// nil means that these are stored like all others.
	SignsOfLife nodeleases.SignsOfLife

	// Audit takes the audit events; nil means that there are none. Its owner runs it.
	Audit *audit.Log
	// Transformers encrypt resources in the store; nil keeps all in clear.
	Transformers value.ResourceTransformers
	// Limits bound the requests that are worked on at once; nil means DefaultLimits.
	Limits *Limits
	// Serving has the options of the port and of requests; nil means the defaults. TLS are those of
	// the port, and Connections bound its clients without credentials.
	Serving     *secureport.Options
	TLS         tlsoptions.Options
	Connections connlimit.Limits
	// Versions may turn API versions off. Feature gates are the process's: see switches.Gates.
	Versions switches.Versions
	// RequestTimeout bounds requests that are not watches or streams; 0 means Serving's.
	RequestTimeout time.Duration

	// Unauthenticated handlers, by path prefix, do their own authentication. They see requests
	// before anything else does.
	Unauthenticated map[string]http.Handler
	// Extra handlers, by path prefix, run behind authentication and authorization, as
	// non-resource URLs.
	Extra map[string]http.Handler
	// LongRunning are paths of Extra whose requests take as long as they take: no limit of time,
	// and no place among the requests in flight.
	LongRunning []string
	// ReadyChecks must pass for /readyz. One of them has to fail while the store has no leader: see
	// healthchecks.OfStore.
	ReadyChecks []healthz.HealthChecker
	// NotAtStart are the names of ReadyChecks that AwaitReady does not wait for. A server that
	// fails one of these takes no clients, and still does its other work.
	NotAtStart []string
	// LiveChecks must pass for /livez and /healthz.
	LiveChecks []healthz.HealthChecker

	// Plugins are the checks of the plugins that encrypt, in /healthz and /readyz. The server does
	// not wait for them at its start: a plugin may run as a pod.
	Plugins []healthz.HealthChecker

	// Build is Barque's own version, shown in /version; "" is left out.
	Build  string
	Logger *slog.Logger
	// Now tells the time; nil means time.Now.
	Now func() time.Time
}

// CertificateFiles names a certificate and its key, in PEM. They are read again when they change.
type CertificateFiles struct{ CertFile, KeyFile string }

// ServiceAccounts says how service-account tokens are signed and verified.
type ServiceAccounts struct {
	// Issuer URL; "" means https://kubernetes.default.svc.cluster.local.
	Issuer string
	// Keys returns the key that signs at this moment, ECDSA P-256 or RSA, the same on every server,
	// and the others that verify, too.
	Keys func() (sign crypto.Signer, others []crypto.PublicKey)
	// Audiences that tokens for this API carry; nil means the issuer.
	Audiences []string
	// MaxLifetime bounds the lifetimes of tokens; 0 means that there is no bound.
	MaxLifetime time.Duration
	// NoExtension gives the tokens of pods the lifetime that they ask for, and no more.
	NoExtension bool
}

// TolerationSeconds is how long pods stay on a node that is not ready, or unreachable.
type TolerationSeconds struct{ NotReady, Unreachable int64 }

// PortRange is a range of ports, both ends included.
type PortRange struct{ First, Last uint16 }

// NodePorts is the range of node ports.
func (s *Server) NodePorts() PortRange { return s.cfg.NodePorts }

// Limits bound the requests that are worked on at once. Watches count until they have begun, other
// long-running requests not at all.
type Limits struct {
	// Fairness shares the sum of both numbers out by priority levels and flow schemas. Without it,
	// each number is a limit of its own, the same for all users, and 0 is none.
	Fairness bool
	// InFlight is for requests that only read, MutatingInFlight for the others.
	InFlight, MutatingInFlight int
}

// DefaultLimits are those of kube-apiserver.
func DefaultLimits() Limits { return Limits{Fairness: true, InFlight: 400, MutatingInFlight: 200} }

// Check says what is wrong with the limits, by the names of the flags that set them.
func (l Limits) Check() error {
	switch {
	case l.InFlight < 0:
		return fmt.Errorf("--max-requests-inflight %d: want 0 or more", l.InFlight)
	case l.MutatingInFlight < 0:
		return fmt.Errorf("--max-mutating-requests-inflight %d: want 0 or more", l.MutatingInFlight)
	case l.Fairness && l.InFlight+l.MutatingInFlight == 0:
		return errors.New(
			"--max-requests-inflight and --max-mutating-requests-inflight are both 0: with --enable-priority-and-fairness their sum is what is shared out; give one of them more than 0")
	}
	return nil
}

const (
	defaultIssuer        = "https://kubernetes.default.svc.cluster.local"
	defaultFirstNodePort = 30000
	defaultLastNodePort  = 32767
)

// serviceCIDRs are the configured ranges of ClusterIPs.
func (c *Config) serviceCIDRs() []netip.Prefix {
	out := []netip.Prefix{c.ServiceCIDR.Masked()}
	if c.SecondaryServiceCIDR.IsValid() {
		out = append(out, c.SecondaryServiceCIDR.Masked())
	}
	return out
}

// ProxyClientName is the common name of the certificate with which servers call extension API
// servers. Those take the user from the headers of a request only when it comes with this name.
// Where one CA is for all purposes, certificates of nodes and users have the same authority, and
// must never carry it.
const ProxyClientName = "barque:front-proxy"

// FirstServiceAddress is the address of the kubernetes Service in a range of ClusterIPs; serving
// certificates must be valid for it.
func FirstServiceAddress(cidr netip.Prefix) netip.Addr { return services.FirstAddress(cidr) }

// DNSServiceAddress is the address of cluster DNS in a range of ClusterIPs.
func DNSServiceAddress(cidr netip.Prefix) netip.Addr { return services.DNSAddress(cidr) }

func (c *Config) complete() error {
	if (c.Revoked == nil) != (c.RevokedChanged == nil) {
		return errors.New("apiserver: Revoked and RevokedChanged are given together")
	}
	if c.Store == nil || c.Listener == nil || c.Certificate == nil || c.ClientCA == nil ||
		c.ServiceAccounts.Keys == nil || c.Logger == nil {
		return errors.New(
			"apiserver: Store, Listener, Certificate, ClientCA, ServiceAccounts.Keys and Logger are required")
	}
	if !c.ServiceCIDR.IsValid() || !c.Advertise.IsValid() {
		return errors.New("apiserver: ServiceCIDR and Advertise are required")
	}
	if c.ProxyCA == nil {
		c.ProxyCA = c.ClientCA
	}
	if c.Resources == nil {
		c.Resources = DefaultResources()
	}
	if c.ServiceAccounts.Issuer == "" {
		c.ServiceAccounts.Issuer = defaultIssuer
	}
	if c.ServiceAccounts.Audiences == nil {
		c.ServiceAccounts.Audiences = []string{c.ServiceAccounts.Issuer}
	}
	if c.NodePorts == (PortRange{}) {
		c.NodePorts = PortRange{defaultFirstNodePort, defaultLastNodePort}
	}
	if c.TolerationSeconds == nil {
		c.TolerationSeconds = &TolerationSeconds{barqueadmission.DefaultTolerationSeconds,
			barqueadmission.DefaultTolerationSeconds}
	}
	if c.Authorizers == nil {
		c.Authorizers = authorizers.Default()
	}
	if c.Serving == nil {
		c.Serving = secureport.NewOptions()
	}
	if err := errors.Join(c.Serving.Check(), c.TLS.Check()); err != nil {
		return fmt.Errorf("apiserver: %w", err)
	}
	if !c.Serving.Anonymous && !c.NoAnonymous && c.AnonymousPaths == nil {
		c.AnonymousPaths = secureport.OpenPaths
	}
	if c.RequestTimeout == 0 {
		c.RequestTimeout = c.Serving.RequestTimeout
	}
	if c.Limits == nil {
		c.Limits = new(DefaultLimits())
	}
	if err := c.Limits.Check(); err != nil {
		return fmt.Errorf("apiserver: %w", err)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return nil
}
