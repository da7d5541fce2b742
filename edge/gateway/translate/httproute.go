package translate

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/barque/barque/edge/gateway/model"
)

// TranslateHTTPRoute translates an HTTPRoute.
func TranslateHTTPRoute(c Cluster, ports Ports, r *gatewayv1.HTTPRoute) Route {
	o := &object{meta: &r.ObjectMeta, kind: "HTTPRoute", spec: &r.Spec.CommonRouteSpec, hosts: r.Spec.Hostnames}
	m := &model.Route{Origin: originOf(o), Created: r.CreationTimestamp.Time}
	for i := range r.Spec.Rules {
		rule, err := httpRule(c, o, &r.Spec.Rules[i])
		if err != nil && o.refused == "" {
			o.refused = fmt.Sprintf("rule %d: %v", i, err)
		}
		m.Rules = append(m.Rules, rule)
	}
	return attach(c, ports, o, m)
}

func originOf(o *object) model.Origin {
	return model.Origin{Kind: o.kind,
		NamespacedName: types.NamespacedName{Namespace: o.meta.Namespace, Name: o.meta.Name}}
}

func httpRule(c Cluster, o *object, r *gatewayv1.HTTPRouteRule) (rule model.Rule, err error) {
	if r.Retry != nil {
		return rule, fmt.Errorf("retry is not supported")
	}
	if r.SessionPersistence != nil {
		return rule, fmt.Errorf("sessionPersistence is not supported")
	}
	for i := range r.Matches {
		m, err := httpMatch(&r.Matches[i])
		if err != nil {
			return rule, err
		}
		rule.Matches = append(rule.Matches, m)
	}
	if len(r.Matches) == 0 {
		rule.Matches = []model.Match{{Path: "/"}}
	}
	if err := httpFilters(c, o, r.Filters, &rule.Action); err != nil {
		return rule, err
	}
	if t := r.Timeouts; t != nil {
		if rule.Action.Timeouts.Request, err = duration(t.Request); err != nil {
			return rule, err
		}
		if rule.Action.Timeouts.Backend, err = duration(t.BackendRequest); err != nil {
			return rule, err
		}
	}
	for i := range r.BackendRefs {
		b := backendOf(c, o, &r.BackendRefs[i].BackendRef)
		var own model.Action
		if err := httpFilters(c, o, r.BackendRefs[i].Filters, &own); err != nil {
			return rule, err
		}
		if own.Redirect != nil || len(own.Mirrors) > 0 || own.CORS != nil {
			return rule, fmt.Errorf("backends may have filters of headers and rewrites only")
		}
		b.Filters = own.Filters
		rule.Action.Backends = append(rule.Action.Backends, b)
	}
	return rule, nil
}

func duration(d *gatewayv1.Duration) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	return time.ParseDuration(string(*d))
}

func httpMatch(in *gatewayv1.HTTPRouteMatch) (m model.Match, err error) {
	m.Path = "/"
	if in.Path != nil {
		m.Path = value(in.Path.Value, "/")
		switch value(in.Path.Type, gatewayv1.PathMatchPathPrefix) {
		case gatewayv1.PathMatchExact:
			m.Kind = model.Exact
		case gatewayv1.PathMatchRegularExpression:
			m.Kind = model.Regex
			if m.Pattern, err = pattern(m.Path); err != nil {
				return m, err
			}
		case gatewayv1.PathMatchPathPrefix:
		default:
			return m, fmt.Errorf("the kind of path %s is not supported", *in.Path.Type)
		}
	}
	m.Method = string(value(in.Method, ""))
	for _, h := range in.Headers {
		v := model.Value{Name: http.CanonicalHeaderKey(string(h.Name)), Text: h.Value}
		if value(h.Type, gatewayv1.HeaderMatchExact) == gatewayv1.HeaderMatchRegularExpression {
			if v.Pattern, err = pattern(h.Value); err != nil {
				return m, err
			}
		}
		// Only the first of several with one name counts.
		if !slices.ContainsFunc(m.Headers, func(o model.Value) bool { return o.Name == v.Name }) {
			m.Headers = append(m.Headers, v)
		}
	}
	for _, q := range in.QueryParams {
		v := model.Value{Name: string(q.Name), Text: q.Value}
		if value(q.Type, gatewayv1.QueryParamMatchExact) == gatewayv1.QueryParamMatchRegularExpression {
			if v.Pattern, err = pattern(q.Value); err != nil {
				return m, err
			}
		}
		if !slices.ContainsFunc(m.Query, func(o model.Value) bool { return o.Name == v.Name }) {
			m.Query = append(m.Query, v)
		}
	}
	return m, nil
}

func httpFilters(c Cluster, o *object, filters []gatewayv1.HTTPRouteFilter, a *model.Action) error {
	for i := range filters {
		f := &filters[i]
		switch {
		case f.Type == gatewayv1.HTTPRouteFilterRequestHeaderModifier && f.RequestHeaderModifier != nil:
			a.Filters.Request = headers(f.RequestHeaderModifier)
		case f.Type == gatewayv1.HTTPRouteFilterResponseHeaderModifier && f.ResponseHeaderModifier != nil:
			a.Filters.Response = headers(f.ResponseHeaderModifier)
		case f.Type == gatewayv1.HTTPRouteFilterRequestRedirect && f.RequestRedirect != nil:
			d := f.RequestRedirect
			a.Redirect = &model.Redirect{
				Scheme: value(d.Scheme, ""), Hostname: string(value(d.Hostname, "")), Port: uint16(value(d.Port, 0)),
				Path: pathChange(d.Path), Code: value(d.StatusCode, http.StatusFound),
			}
		case f.Type == gatewayv1.HTTPRouteFilterURLRewrite && f.URLRewrite != nil:
			a.Filters.Rewrite = &model.Rewrite{Hostname: string(value(f.URLRewrite.Hostname, "")),
				Path: pathChange(f.URLRewrite.Path)}
		case f.Type == gatewayv1.HTTPRouteFilterRequestMirror && f.RequestMirror != nil:
			a.Mirrors = append(a.Mirrors, mirror(c, o, f.RequestMirror))
		case f.Type == gatewayv1.HTTPRouteFilterCORS && f.CORS != nil:
			a.CORS = cors(f.CORS)
		default:
			return fmt.Errorf("the filter %s is not supported", f.Type)
		}
	}
	if a.Redirect != nil && a.Filters.Rewrite != nil {
		return fmt.Errorf("a redirect and a rewrite exclude each other")
	}
	return nil
}

func headers(f *gatewayv1.HTTPHeaderFilter) (h model.Headers) {
	for _, s := range f.Set {
		h.Set = append(h.Set, model.Header{Name: string(s.Name), Value: s.Value})
	}
	for _, a := range f.Add {
		h.Add = append(h.Add, model.Header{Name: string(a.Name), Value: a.Value})
	}
	h.Remove = f.Remove
	return h
}

func pathChange(p *gatewayv1.HTTPPathModifier) (c model.PathChange) {
	if p == nil {
		return c
	}
	switch p.Type {
	case gatewayv1.FullPathHTTPPathModifier:
		c.Full = p.ReplaceFullPath
	case gatewayv1.PrefixMatchHTTPPathModifier:
		c.Prefix = p.ReplacePrefixMatch
	}
	return c
}

func mirror(c Cluster, o *object, f *gatewayv1.HTTPRequestMirrorFilter) model.Mirror {
	m := model.Mirror{Backend: backendOf(c, o, &gatewayv1.BackendRef{BackendObjectReference: f.BackendRef})}
	switch {
	case f.Percent != nil:
		m.Numerator, m.Denominator = *f.Percent, 100
	case f.Fraction != nil:
		m.Numerator, m.Denominator = f.Fraction.Numerator, value(f.Fraction.Denominator, 100)
	}
	return m
}

func cors(f *gatewayv1.HTTPCORSFilter) *model.CORS {
	c := &model.CORS{Credentials: value(f.AllowCredentials, false), MaxAge: time.Duration(f.MaxAge) * time.Second}
	if f.MaxAge == 0 {
		c.MaxAge = 5 * time.Second
	}
	for _, o := range f.AllowOrigins {
		c.Origins = append(c.Origins, string(o))
	}
	for _, m := range f.AllowMethods {
		c.AnyMethod = c.AnyMethod || m == "*"
		c.Methods = append(c.Methods, string(m))
	}
	for _, h := range f.AllowHeaders {
		c.AnyHeader = c.AnyHeader || h == "*"
		c.Headers = append(c.Headers, string(h))
	}
	for _, h := range f.ExposeHeaders {
		c.Expose = append(c.Expose, string(h))
	}
	return c
}

// backendOf resolves a reference. A backend that cannot be used keeps its share of the requests,
// which are answered with an error.
func backendOf(c Cluster, o *object, ref *gatewayv1.BackendRef) model.Backend {
	b := model.Backend{Weight: value(ref.Weight, 1)}
	kind := string(value(ref.Kind, "Service"))
	if value(ref.Group, "") != "" || kind != "Service" {
		b.Invalid = o.resolved.fail(gatewayv1.RouteReasonInvalidKind,
			fmt.Sprintf("the backend %s is a %s; only Services are supported", ref.Name, kind))
		return b
	}
	b.Service = types.NamespacedName{Namespace: string(value(ref.Namespace, gatewayv1.Namespace(o.meta.Namespace))),
		Name: string(ref.Name)}
	o.resolved.services = append(o.resolved.services, b.Service)
	if !granted(c, o.kind, o.meta.Namespace, "", "Service", b.Service) {
		b.Invalid = o.resolved.fail(gatewayv1.RouteReasonRefNotPermitted,
			fmt.Sprintf("no ReferenceGrant in %s lets a %s of %s refer to the Service %s", b.Service.Namespace, o.kind,
				o.meta.Namespace, b.Service.Name))
		return b
	}
	service := c.Service(b.Service)
	if service == nil {
		b.Invalid = o.resolved.fail(gatewayv1.RouteReasonBackendNotFound,
			fmt.Sprintf("there is no Service %s", b.Service))
		return b
	}
	if b.Port = value(ref.Port, 0); b.Port == 0 {
		b.Invalid = o.resolved.fail(gatewayv1.RouteReasonInvalidKind,
			fmt.Sprintf("the reference to the Service %s needs a port", b.Service))
		return b
	}
	i := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == b.Port })
	switch {
	case i < 0:
		b.Invalid = o.resolved.fail(gatewayv1.RouteReasonBackendNotFound,
			fmt.Sprintf("the Service %s has no port %d", b.Service, b.Port))
	case service.Spec.Type == corev1.ServiceTypeExternalName:
		b.Invalid = o.resolved.fail(gatewayv1.RouteReasonUnsupportedProtocol,
			fmt.Sprintf("the Service %s is an ExternalName, which is no backend", b.Service))
	case o.kind == "HTTPRoute" && !spoken(service.Spec.Ports[i].AppProtocol):
		b.Invalid = o.resolved.fail(gatewayv1.RouteReasonUnsupportedProtocol,
			fmt.Sprintf("the appProtocol %s of the Service %s is not supported", *service.Spec.Ports[i].AppProtocol,
				b.Service))
	default:
		b.Verify = verifyOf(c, b.Service, service.Spec.Ports[i].Name)
	}
	return b
}

// spoken reports whether the data plane speaks a Service's protocol. Names without a slash are
// everybody's, and mean what the port's name means.
func spoken(app *string) bool {
	if app == nil || !strings.Contains(*app, "/") {
		return true
	}
	switch *app {
	case "kubernetes.io/h2c", "kubernetes.io/ws", "kubernetes.io/wss":
		return true
	}
	return !strings.HasPrefix(*app, "kubernetes.io/")
}
