package secureport

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Options configure the API's port, by flags. They are those of kube-apiserver, with its defaults.
type Options struct {
	HTTP2Streams int // of one connection; 0 means DefaultHTTP2Streams
	// GoawayChance is the share of requests of HTTP/2 after which the client gets a GOAWAY to
	// connect again, which spreads clients over servers behind a load balancer.
	GoawayChance float64
	// RequestTimeout bounds requests that are not watches or streams. MinRequestTimeout is how long
	// watches last at least, in seconds: a random time up to twice that.
	RequestTimeout    time.Duration
	MinRequestTimeout int
	// SANs are further names and addresses in the certificate of the API.
	SANs []string
	// Addresses are those at which the leader answers, besides each server's own. They are in the
	// certificate, too.
	Addresses []string
	// ShutdownDelay is how long a server that stops goes on to serve while it is not ready.
	ShutdownDelay time.Duration
	Profiling     bool // serve /debug/pprof
	// Anonymous gives requests without credentials the user system:anonymous, which RBAC judges.
	// Without it they are refused, except on OpenPaths.
	Anonymous bool
}

// OpenPaths answer requests without credentials also with --anonymous-auth=false: load balancers
// have none, nor has a machine that reads the version before it joins. RBAC decides about them
// before any webhook.
var OpenPaths = []string{"/healthz", "/livez", "/readyz", "/version"}

const (
	mostGoaway = 0.02 // of kube-apiserver
	// longestShutdownDelay leaves a service manager's time-out, 90 s, some time for the rest.
	longestShutdownDelay = time.Minute
)

// NewOptions returns the defaults.
func NewOptions() *Options {
	return &Options{HTTP2Streams: DefaultHTTP2Streams, RequestTimeout: time.Minute, MinRequestTimeout: 1800,
		Profiling: true, Anonymous: true}
}

// AddFlags adds the flags.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	f.IntVar(&o.HTTP2Streams, "http2-max-streams-per-connection", o.HTTP2Streams,
		"how many requests of HTTP/2 a client may have open on one connection to the API")
	f.Float64Var(&o.GoawayChance, "goaway-chance", o.GoawayChance,
		"share of requests of HTTP/2, from 0 to 0.02, after which a client is asked to connect again, so that clients spread over the servers behind a load balancer; 0 is none")
	f.DurationVar(&o.RequestTimeout, "request-timeout", o.RequestTimeout,
		"how long a request to the API may take that is no watch and no stream")
	f.IntVar(&o.MinRequestTimeout, "min-request-timeout", o.MinRequestTimeout,
		"how many seconds a watch lasts at least, unless its client asks for less: each gets a random time up to twice that")
	f.DurationVar(&o.ShutdownDelay, "shutdown-delay-duration", o.ShutdownDelay,
		"how long a server that is told to stop goes on to serve while its /readyz fails, so that load balancers leave it; it takes 1.2 s at least")
	f.BoolVar(&o.Profiling, "profiling", o.Profiling,
		"serve profiles of the server, with its controllers and scheduler, at /debug/pprof to clients with the right for that path")
	f.BoolVar(&o.Anonymous, "anonymous-auth", o.Anonymous,
		"let requests without credentials be those of system:anonymous; false refuses them, but for "+
			strings.Join(OpenPaths, ", "))
	f.StringSliceVar(&o.SANs, "tls-san", nil,
		"further name or address by which clients call the API, such as a load balancer's, for its certificate; give it to all servers")
	f.StringSliceVar(&o.Addresses, "api-address", nil,
		"free address of the servers' network at which the leader answers for the API, one or one of each family; give it to all servers")
}

// Check returns the faults of the options.
func (o *Options) Check() error {
	switch {
	case o.HTTP2Streams < 1 || o.HTTP2Streams > 1000:
		return fmt.Errorf("--http2-max-streams-per-connection %d: want 1 to 1000", o.HTTP2Streams)
	case !(o.GoawayChance >= 0 && o.GoawayChance <= mostGoaway):
		return fmt.Errorf("--goaway-chance %v: want 0 to %v", o.GoawayChance, mostGoaway)
	case o.RequestTimeout < time.Second:
		return fmt.Errorf("--request-timeout %s: want 1s or more", o.RequestTimeout)
	case o.MinRequestTimeout < 0:
		return fmt.Errorf("--min-request-timeout %d: want 0 or more", o.MinRequestTimeout)
	case o.ShutdownDelay < 0 || o.ShutdownDelay > longestShutdownDelay:
		return fmt.Errorf("--shutdown-delay-duration %s: want 0 to %s", o.ShutdownDelay, longestShutdownDelay)
	}
	var errs []error
	for _, name := range o.SANs {
		errs = append(errs, checkSAN(name))
	}
	return errors.Join(errs...)
}
