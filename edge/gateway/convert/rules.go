package convert

import (
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/barque/barque/edge/gateway/model"
	"github.com/barque/barque/edge/gateway/translate"
)

// lost are the parts of an action without an equivalent in the standard channel.
var lost = []struct {
	annotations []string
	has         func(*model.Action) bool
	why         string
	// protects means that a route without it would let in more than the Ingress does.
	protects bool
}{
	{[]string{"proxy-body-size"}, func(a *model.Action) bool { return a.MaxBody > 0 }, "no limit of bodies", false},
	{[]string{"proxy-connect-timeout"}, func(a *model.Action) bool { return a.Timeouts.Connect > 0 },
		"no time-out of connecting", false},
	{[]string{"proxy-read-timeout", "proxy-send-timeout"}, func(a *model.Action) bool { return a.Timeouts.Read > 0 },
		"no time-out between two parts of a response; timeouts.backendRequest limits a whole one", false},
	{[]string{"affinity"}, func(a *model.Action) bool { return a.Affinity != nil },
		"sessionPersistence is not in the standard channel", false},
	{[]string{"backend-protocol"}, func(a *model.Action) bool { return has(a, model.H2C) },
		"set appProtocol: kubernetes.io/h2c at the port of the Service, or write a GRPCRoute", false},
	{[]string{"backend-protocol"}, func(a *model.Action) bool { return has(a, model.TLS) || has(a, model.TLSH2) },
		"a BackendTLSPolicy for the Service does it, which verifies the certificate", false},
	{[]string{"whitelist-source-range", "allowlist-source-range", "denylist-source-range"},
		func(a *model.Action) bool { return len(a.Access.Allow)+len(a.Access.Deny) > 0 },
		"no limits of clients' addresses", true},
	{[]string{"auth-type"}, func(a *model.Action) bool { return a.Access.Basic != nil }, "no basic authentication",
		true},
	{[]string{"auth-url"}, func(a *model.Action) bool { return a.Access.External != nil },
		"no external authentication in the standard channel", true},
}

func has(a *model.Action, p model.Protocol) bool {
	return slices.ContainsFunc(a.Backends, func(b model.Backend) bool { return b.Protocol == p })
}

// named returns the annotations of the Ingress among those, as it has them.
func (c *conversion) named(short ...string) string {
	all := translate.Annotations(c.in)
	var names []string
	for _, s := range short {
		if full, ok := all[s]; ok {
			names = append(names, full)
		}
	}
	return strings.Join(names, ", ")
}

// rule converts one match with its action.
func (c *conversion) rule(cluster known, m *model.Match, a model.Action) rule {
	for _, l := range lost {
		switch {
		case !l.has(&a):
		case l.protects:
			c.leaveOut("%s: the Gateway API has no equivalent: %s", c.named(l.annotations...), l.why)
		default:
			c.lose("%s: the Gateway API has no equivalent: %s", c.named(l.annotations...), l.why)
		}
	}
	if a.Canary != nil {
		c.canary = a.Canary
	}
	out := rule{kind: m.Kind, path: m.Path}
	match, rewrite := c.match(m, a.Filters.Rewrite)
	out.Matches = []gatewayv1.HTTPRouteMatch{match}
	if a.CORS != nil {
		c.addCORS(&out, a.CORS)
	}
	if a.Redirect != nil {
		if f := c.redirect(a.Redirect); f != nil {
			out.Filters = append(out.Filters,
				gatewayv1.HTTPRouteFilter{Type: gatewayv1.HTTPRouteFilterRequestRedirect, RequestRedirect: f})
		}
		return out
	}
	set := &gatewayv1.HTTPHeaderFilter{}
	for _, h := range a.Filters.Request.Set {
		switch {
		case h.Name != "Host":
			set.Set = append(set.Set, gatewayv1.HTTPHeader{Name: gatewayv1.HTTPHeaderName(h.Name), Value: h.Value})
		case !precise(h.Value):
			c.lose("%s: %q is no name of a host", c.named("upstream-vhost"), h.Value)
		default:
			if rewrite == nil {
				rewrite = &gatewayv1.HTTPURLRewriteFilter{}
			}
			rewrite.Hostname = new(gatewayv1.PreciseHostname(h.Value))
		}
	}
	if len(set.Set) > 0 {
		out.Filters = append(out.Filters,
			gatewayv1.HTTPRouteFilter{Type: gatewayv1.HTTPRouteFilterRequestHeaderModifier, RequestHeaderModifier: set})
	}
	if rewrite != nil {
		out.Filters = append(out.Filters, gatewayv1.HTTPRouteFilter{Type: gatewayv1.HTTPRouteFilterURLRewrite,
			URLRewrite: rewrite})
	}
	for i := range a.Backends {
		if ref, ok := c.backend(cluster, &a.Backends[i]); ok {
			out.BackendRefs = append(out.BackendRefs, ref)
		}
	}
	return out
}

// precise reports whether a text is a name of a host as the Gateway API wants it.
func precise(name string) bool {
	_, err := netip.ParseAddr(name)
	return err != nil && len(validation.IsDNS1123Subdomain(name)) == 0
}

func (c *conversion) backend(cluster known, b *model.Backend) (ref gatewayv1.HTTPBackendRef, ok bool) {
	port := b.Port
	if b.PortName != "" {
		if s := cluster.Service(b.Service); s != nil {
			for _, p := range s.Spec.Ports {
				if p.Name == b.PortName {
					port = p.Port
				}
			}
		}
	}
	switch {
	case b.Service.Name == "": // a problem has said why
		return ref, false
	case port == 0:
		c.leaveOut("the number of the port %q of the Service %s is not known: give the Service, too", b.PortName,
			b.Service.Name)
		return ref, false
	}
	ref.Name, ref.Port = gatewayv1.ObjectName(b.Service.Name), &port
	return ref, true
}

// literal are the paths that the Gateway API lets a prefix or an exact match have.
var literal = regexp.MustCompile(`^/(?:[-A-Za-z0-9/._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})*$`)

// Expressions of ingress-nginx that its documentation has for rewrites. What is in front is
// literal, and the last group is the rest of the path.
var (
	restOrNothing = regexp.MustCompile(`^((?:/[-A-Za-z0-9_~]+)*)\(/\|\$\)\(\.\*\)$`)
	rest          = regexp.MustCompile(`^((?:/[-A-Za-z0-9_~]+)*)/\(\.\*\)$`)
)

func full(path *string) *gatewayv1.HTTPPathModifier {
	return &gatewayv1.HTTPPathModifier{Type: gatewayv1.FullPathHTTPPathModifier, ReplaceFullPath: path}
}

func replace(path *gatewayv1.HTTPPathModifier) *gatewayv1.HTTPURLRewriteFilter {
	return &gatewayv1.HTTPURLRewriteFilter{Path: path}
}

// match converts a path, with its rewrite.
func (c *conversion) match(m *model.Match, rewrite *model.Rewrite) (gatewayv1.HTTPRouteMatch,
	*gatewayv1.HTTPURLRewriteFilter) {
	of := func(kind gatewayv1.PathMatchType, path string) gatewayv1.HTTPRouteMatch {
		return gatewayv1.HTTPRouteMatch{Path: &gatewayv1.HTTPPathMatch{Type: &kind, Value: &path}}
	}
	var filter *gatewayv1.HTTPURLRewriteFilter
	if rewrite != nil && rewrite.Path.Groups != nil {
		to := *rewrite.Path.Groups
		if prefix, target, ok := prefixOf(m, to); ok {
			c.note("the path %s is compared with regard to case in the Gateway API", m.Path)
			if prefix == "" && target == "/" {
				return of(gatewayv1.PathMatchPathPrefix, "/"), nil
			}
			filter = replace(
				&gatewayv1.HTTPPathModifier{Type: gatewayv1.PrefixMatchHTTPPathModifier, ReplacePrefixMatch: &target})
			if prefix == "" {
				prefix = "/"
			}
			return of(gatewayv1.PathMatchPathPrefix, prefix), filter
		}
		if strings.Contains(to, "$") {
			c.leaveOut("%s: the Gateway API has no equivalent: %q of the path %q is not the rest behind a prefix",
				c.named("rewrite-target"), to, m.Path)
		}
		filter = replace(full(&to))
	}
	if rewrite != nil && rewrite.Path.Full != nil {
		filter = replace(full(rewrite.Path.Full))
	}
	path := m.Path
	if path == "" {
		path = "/"
	}
	if m.Kind == model.Regex {
		if alternates(path) {
			path = "(?:" + path + ")"
		}
		if !openEnd(path) {
			path += ".*" // an expression of the Gateway API is for the whole path
		}
		if path = "(?i)" + path; len(path) > 1024 {
			c.leaveOut("the path %q is longer than the Gateway API's bound", m.Path)
		}
		return of(gatewayv1.PathMatchRegularExpression, path), filter
	}
	if !literal.MatchString(path) || unclean(path) {
		c.leaveOut("the path %q is none of the Gateway API", m.Path)
	}
	if m.Kind == model.Exact {
		return of(gatewayv1.PathMatchExact, path), filter
	}
	return of(gatewayv1.PathMatchPathPrefix, path), filter
}

func unclean(path string) bool {
	for _, part := range []string{"//", "/./", "/../", "%2f", "%2F"} {
		if strings.Contains(path, part) {
			return true
		}
	}
	return strings.HasSuffix(path, "/.") || strings.HasSuffix(path, "/..")
}

// prefixOf reads a rewrite that replaces a prefix.
func prefixOf(m *model.Match, to string) (prefix, target string, ok bool) {
	if m.Kind != model.Regex {
		return "", "", false
	}
	for _, idiom := range []struct {
		path  *regexp.Regexp
		group string
	}{{restOrNothing, "$2"}, {rest, "$1"}} {
		found := idiom.path.FindStringSubmatch(m.Path)
		if target, ok := strings.CutSuffix(to, idiom.group); ok && found != nil && strings.HasSuffix(target, "/") &&
			!strings.Contains(target, "$") {
			return found[1], target, true
		}
	}
	return "", "", false
}

// alternates reports whether an expression is a choice outside of all groups.
func alternates(expression string) bool {
	depth, class := 0, false
	for i := 0; i < len(expression); i++ {
		switch c := expression[i]; {
		case c == '\\':
			i++
		case c == '[':
			class = true
		case c == ']':
			class = false
		case class:
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == '|' && depth == 0:
			return true
		}
	}
	return false
}

// openEnd reports whether an expression says itself where it ends.
func openEnd(expression string) bool {
	for _, end := range []string{"$", ".*", ".*)", "$)"} {
		if before, ok := strings.CutSuffix(expression, end); ok && !strings.HasSuffix(before, `\`) {
			return true
		}
	}
	return false
}

func (c *conversion) redirect(d *model.Redirect) *gatewayv1.HTTPRequestRedirectFilter {
	out := &gatewayv1.HTTPRequestRedirectFilter{StatusCode: &d.Code}
	by := c.named("permanent-redirect", "temporal-redirect")
	if !slices.Contains([]int{301, 302, 303, 307, 308}, d.Code) {
		c.leaveOut("%s: the Gateway API has no redirect with the code %d", c.named("permanent-redirect-code"), d.Code)
	}
	if d.URL == "" {
		if d.Scheme != "" {
			out.Scheme = &d.Scheme
		}
		return out
	}
	u, err := url.Parse(d.URL)
	if err != nil || !precise(u.Hostname()) || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		c.leaveOut(
			"%s: the Gateway API has no redirect to %s: it takes a scheme, the name of a host, a port and a path", by,
			d.URL)
		return out
	}
	path := u.EscapedPath()
	if path == "" {
		path = "/"
	}
	c.note("%s: the query of a request is kept in the Gateway API", by)
	out.Scheme, out.Hostname = &u.Scheme, new(gatewayv1.PreciseHostname(u.Hostname()))
	out.Path = full(&path)
	if port, err := strconv.ParseUint(u.Port(), 10, 16); err == nil {
		out.Port = new(gatewayv1.PortNumber(port))
	}
	return out
}

// methods are those that a filter of CORS may name.
var methods = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "*"}

// origin is the form of origins that a filter of CORS may name.
var origin = regexp.MustCompile(`(^\*$)|(^https?://(((\*\.)?([a-zA-Z0-9-]+\.)*[a-zA-Z0-9-]+|\*)(:([0-9]{1,5}))?)$)`)

func (c *conversion) addCORS(out *rule, of *model.CORS) {
	f := &gatewayv1.HTTPCORSFilter{MaxAge: int32(of.MaxAge.Seconds())}
	if of.Credentials {
		f.AllowCredentials = &of.Credentials
	}
	for _, o := range alone(of.Origins) {
		if !origin.MatchString(o) {
			c.lose("%s: %q is no origin of the Gateway API", c.named("cors-allow-origin"), o)
			continue
		}
		f.AllowOrigins = append(f.AllowOrigins, gatewayv1.CORSOrigin(o))
	}
	for _, m := range alone(of.Methods) {
		if !slices.Contains(methods, m) {
			c.lose("%s: %q is no method of the Gateway API", c.named("cors-allow-methods"), m)
			continue
		}
		f.AllowMethods = append(f.AllowMethods, gatewayv1.HTTPMethodWithWildcard(m))
	}
	for _, h := range alone(of.Headers) {
		f.AllowHeaders = append(f.AllowHeaders, gatewayv1.HTTPHeaderName(h))
	}
	for _, h := range of.Expose {
		f.ExposeHeaders = append(f.ExposeHeaders, gatewayv1.HTTPHeaderName(h))
	}
	if f.MaxAge == 0 {
		c.lose("%s: the Gateway API has one second at least", c.named("cors-max-age"))
		f.MaxAge = 1
	}
	out.Filters = append(out.Filters, gatewayv1.HTTPRouteFilter{Type: gatewayv1.HTTPRouteFilterCORS, CORS: f})
}

// alone drops what a star includes: the Gateway API does not let it have company.
func alone(all []string) []string {
	if slices.Contains(all, "*") {
		return []string{"*"}
	}
	return all
}
