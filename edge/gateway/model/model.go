// Package model is the one form of routes that the data plane knows: plain data, made by package
// translate out of Ingresses and objects of the Gateway API, and served by package proxy. It names
// Services and Secrets. Endpoints and certificates are not in it, so that a pod or a certificate
// can change without a change of routes.
package model

import (
	"cmp"
	"net/netip"
	"regexp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Origin is the object that a route was made from.
type Origin struct {
	Kind string
	types.NamespacedName
}

// Route is the routing of one object.
type Route struct {
	Origin  Origin
	Created time.Time
	// Places are where its rules are served. A route without places is served nowhere.
	Places []Place
	Rules  []Rule
	// Stream are the backends of a route by server name, in place of rules.
	Stream []Backend
}

// Place is a port, and the names that a route has there.
type Place struct {
	Port  uint16
	Serve Serve
	// Hosts are names, or names behind "*.". "" is every name.
	Hosts []string
	// OneLabel lets "*." stand for one label only, as Ingress has it.
	OneLabel bool
	// Rules are the indexes of the rules that are served there; nil is all of them.
	Rules []int
	// Addresses are as in Listener.
	Addresses []netip.Addr
	// Clients are the requirements of the route's listener; nil is none.
	Clients *Clients
	// Shown is the Secret with the certificate that backends are shown; its zero value is none.
	Shown types.NamespacedName
}

// Serve is how connections of a port are read.
type Serve int

// The ways to read connections. A port has plain HTTP, or the others.
const (
	HTTP Serve = iota
	HTTPS
	Passthrough // TLS that the backend ends
	Terminate   // TLS that the gateway ends, around any stream
)

// Listener opens a port, whether there are routes or not.
type Listener struct {
	Port  uint16
	Serve Serve
	// Hostname is a name, a name behind "*.", or "" for every name.
	Hostname string
	// Certificates are Secrets, of which the first that fits a client is shown.
	Certificates []types.NamespacedName
	// SelfSigned lets a certificate that nobody trusts stand in while there is no other.
	SelfSigned bool
	// Isolated means that a request for Hostname is not served by routes of less specific names.
	Isolated bool
	// Addresses are those of its Gateway. Without any, the listener is at the nodes' own addresses.
	Addresses []netip.Addr
	// Clients are the requirements for the certificates of clients of HTTPS; nil is none.
	Clients *Clients
	// Created is since when its object has it. Of listeners with one name the older counts.
	Created time.Time
}

// Clients are the requirements for the certificates of clients.
type Clients struct {
	// Authorities are ConfigMaps with the certificates of CAs. One has to vouch for a client.
	Authorities []types.NamespacedName
	// Optional asks for a certificate, and lets in clients without one or with any.
	Optional bool
}

// Required reports whether a client needs a certificate.
func (c *Clients) Required() bool { return c != nil && !c.Optional }

// Together are the requirements for clients of which nobody knows yet to which of two routes they
// go. Where the two differ, a certificate is asked for, and each route checks it.
func Together(a, b *Clients) *Clients {
	if a == b || a != nil && b != nil && a.Optional == b.Optional && slices.Equal(a.Authorities, b.Authorities) {
		return a
	}
	return &Clients{Optional: true}
}

// Rule is a list of alternatives, and the way of a request that matches one of them.
type Rule struct {
	Matches []Match
	Action  Action
}

// PathKind is how a path is compared.
type PathKind int

// The kinds of comparisons. Prefix compares whole elements between slashes.
const (
	Prefix PathKind = iota
	Exact
	Regex
)

// Match is a condition; its zero value matches everything.
type Match struct {
	Kind    PathKind
	Path    string         // "" is every path
	Pattern *regexp.Regexp // of Regex
	Method  string
	Headers []Value
	Query   []Value
}

// Value compares a header or a parameter with a text, or a pattern if there is one.
type Value struct {
	Name    string
	Text    string
	Pattern *regexp.Regexp
}

// Action is the way of a request.
type Action struct {
	// Access is checked first, in the order of its fields.
	Access  Access
	CORS    *CORS
	Filters Filters
	// Redirect answers in place of the backends.
	Redirect *Redirect
	Mirrors  []Mirror
	Backends []Backend
	Timeouts Timeouts
	// Affinity keeps a client at its endpoint by a cookie.
	Affinity *Affinity
	// MaxBody limits a request's body; 0 is no limit.
	MaxBody int64
	// GRPC makes errors of the gateway statuses of gRPC.
	GRPC   bool
	Canary *Canary
}

// Timeouts of a request; 0 is none. They do not count after an upgrade.
type Timeouts struct {
	// Connect limits one try to reach an endpoint.
	Connect time.Duration
	// Read limits the time between two parts of an endpoint's response.
	Read time.Duration
	// Request limits the time until the response is complete.
	Request time.Duration
	// Backend limits the time until an endpoint's response is complete, for each try.
	Backend time.Duration
}

// Filters change the request and the response.
type Filters struct {
	Request, Response Headers
	Rewrite           *Rewrite
}

// Headers are changes of headers, in the order of the fields.
type Headers struct {
	Set, Add []Header
	Remove   []string
}

// Header is a name with its value.
type Header struct{ Name, Value string }

// PathChange replaces a path.
type PathChange struct {
	// Full replaces the whole path, Prefix the part that a prefix has matched. Groups replaces the
	// whole path, with $1 for the first group of the matched pattern.
	Full, Prefix, Groups *string
}

// Rewrite changes the request before it goes to a backend.
type Rewrite struct {
	Hostname string
	Path     PathChange
}

// Redirect sends the client elsewhere. Empty parts stay as the request has them.
type Redirect struct {
	Scheme, Hostname string
	Port             uint16 // 0 is the usual one of Scheme, or that of the listener
	Path             PathChange
	Code             int
	// URL is the whole target, in place of the others.
	URL string
}

// CORS answers browsers by https://fetch.spec.whatwg.org/#http-cors-protocol.
type CORS struct {
	Origins              []string // with * in them
	Methods, Headers     []string
	Expose               []string
	Credentials          bool
	MaxAge               time.Duration
	AnyMethod, AnyHeader bool
}

// Access limits clients.
type Access struct {
	// Allow are the only clients, unless it is empty; Deny are refused.
	Allow, Deny []netip.Prefix
	// Basic is a Secret with users and their hashed passwords.
	Basic *Basic
	// External is asked with the request's headers.
	External *External
}

// Basic is authentication by name and password.
type Basic struct {
	Realm  string
	Secret types.NamespacedName
	// Map means that each key of the Secret is a user, in place of one file with all of them.
	Map bool
}

// External is a server that decides about a request.
type External struct {
	URL    string
	Method string
	// SignIn is where a browser without credentials is sent.
	SignIn string
	// Headers of the answer go to the backend.
	Headers []string
}

// Mirror gets a copy of some requests, and its answers are dropped.
type Mirror struct {
	Backend Backend
	// Numerator of Denominator requests are copied.
	Numerator, Denominator int32
}

// Affinity is a cookie that names an endpoint.
type Affinity struct {
	Cookie   string
	Path     string
	MaxAge   time.Duration
	SameSite string
	Secure   bool
}

// Canary makes a rule take only some of the requests that match it. The others go on to the next
// rule that matches.
type Canary struct {
	Header, HeaderValue string
	HeaderPattern       *regexp.Regexp
	Cookie              string
	Weight, Total       int
}

// Protocol is how a backend is spoken to.
type Protocol int

// The protocols of backends. Auto follows the Service's appProtocol.
const (
	Auto Protocol = iota
	HTTP1
	H2C
	TLS
	TLSH2
)

// Backend is a port of a Service with its share of requests.
type Backend struct {
	Service types.NamespacedName
	// Port is a number, or PortName a name.
	Port     int32
	PortName string
	Weight   int32
	Protocol Protocol
	Filters  Filters
	// Verify is how the backend's certificate is checked; nil checks nothing. Streams that the
	// backend ends are not affected.
	Verify *Verify
	// Invalid is the reason why the share of this backend is answered with an error.
	Invalid string
}

// Verify has the requirements for a backend's certificate.
type Verify struct {
	// Hostname is the server name that the backend is asked for.
	Hostname string
	// Names are those of which the certificate has one, in place of Hostname, if there are any.
	Names []string
	// Authorities are ConfigMaps with the certificates of CAs; none means those of the system.
	Authorities []types.NamespacedName
	// Invalid is the reason why no certificate can be right. The backend is not connected then.
	Invalid string
}

// Compare orders origins.
func Compare(a, b Origin) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
