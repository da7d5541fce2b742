package translate

import (
	"fmt"
	"net/http"
	"regexp"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/barque/barque/edge/gateway/model"
)

// TranslateGRPCRoute translates a GRPCRoute. Its backends speak HTTP/2 without TLS.
func TranslateGRPCRoute(c Cluster, ports Ports, r *gatewayv1.GRPCRoute) Route {
	o := &object{meta: &r.ObjectMeta, kind: "GRPCRoute", spec: &r.Spec.CommonRouteSpec, hosts: r.Spec.Hostnames}
	m := &model.Route{Origin: originOf(o), Created: r.CreationTimestamp.Time}
	for i := range r.Spec.Rules {
		rule, err := grpcRule(c, o, &r.Spec.Rules[i])
		if err != nil && o.refused == "" {
			o.refused = fmt.Sprintf("rule %d: %v", i, err)
		}
		m.Rules = append(m.Rules, rule)
	}
	return attach(c, ports, o, m)
}

func grpcRule(c Cluster, o *object, r *gatewayv1.GRPCRouteRule) (rule model.Rule, err error) {
	rule.Action.GRPC = true
	if r.SessionPersistence != nil {
		return rule, fmt.Errorf("sessionPersistence is not supported")
	}
	for i := range r.Matches {
		m, err := grpcMatch(&r.Matches[i])
		if err != nil {
			return rule, err
		}
		rule.Matches = append(rule.Matches, m)
	}
	if len(r.Matches) == 0 {
		rule.Matches = []model.Match{{Path: "/"}}
	}
	if err := grpcFilters(c, o, r.Filters, &rule.Action); err != nil {
		return rule, err
	}
	for i := range r.BackendRefs {
		b := backendOf(c, o, &r.BackendRefs[i].BackendRef)
		var own model.Action
		if err := grpcFilters(c, o, r.BackendRefs[i].Filters, &own); err != nil {
			return rule, err
		}
		if len(own.Mirrors) > 0 {
			return rule, fmt.Errorf("backends may have filters of headers only")
		}
		b.Filters = own.Filters
		rule.Action.Backends = append(rule.Action.Backends, b)
	}
	return rule, nil
}

func grpcMatch(in *gatewayv1.GRPCRouteMatch) (m model.Match, err error) {
	m.Path = "/"
	if in.Method != nil {
		service, method := value(in.Method.Service, ""), value(in.Method.Method, "")
		exact := value(in.Method.Type, gatewayv1.GRPCMethodMatchExact) == gatewayv1.GRPCMethodMatchExact
		switch {
		case exact && service != "" && method != "":
			m.Kind, m.Path = model.Exact, "/"+service+"/"+method
		case exact && service != "":
			m.Path = "/" + service
		default:
			if exact {
				method = regexp.QuoteMeta(method)
			}
			any := func(s string) string {
				if s == "" {
					return "[^/]+"
				}
				return "(?:" + s + ")"
			}
			m.Kind, m.Path = model.Regex, "/"+any(service)+"/"+any(method)
			if m.Pattern, err = pattern(m.Path); err != nil {
				return m, err
			}
		}
	}
	for _, h := range in.Headers {
		v := model.Value{Name: http.CanonicalHeaderKey(string(h.Name)), Text: h.Value}
		if value(h.Type, gatewayv1.GRPCHeaderMatchExact) == gatewayv1.GRPCHeaderMatchRegularExpression {
			if v.Pattern, err = pattern(h.Value); err != nil {
				return m, err
			}
		}
		m.Headers = append(m.Headers, v)
	}
	return m, nil
}

func grpcFilters(c Cluster, o *object, filters []gatewayv1.GRPCRouteFilter, a *model.Action) error {
	for i := range filters {
		f := &filters[i]
		switch {
		case f.Type == gatewayv1.GRPCRouteFilterRequestHeaderModifier && f.RequestHeaderModifier != nil:
			a.Filters.Request = headers(f.RequestHeaderModifier)
		case f.Type == gatewayv1.GRPCRouteFilterResponseHeaderModifier && f.ResponseHeaderModifier != nil:
			a.Filters.Response = headers(f.ResponseHeaderModifier)
		case f.Type == gatewayv1.GRPCRouteFilterRequestMirror && f.RequestMirror != nil:
			a.Mirrors = append(a.Mirrors, mirror(c, o, f.RequestMirror))
		default:
			return fmt.Errorf("the filter %s is not supported", f.Type)
		}
	}
	return nil
}

// TranslateTLSRoute translates a TLSRoute. Its listeners say whether the backends end TLS.
func TranslateTLSRoute(c Cluster, ports Ports, r *gatewayv1.TLSRoute) Route {
	o := &object{meta: &r.ObjectMeta, kind: "TLSRoute", spec: &r.Spec.CommonRouteSpec, hosts: r.Spec.Hostnames}
	m := &model.Route{Origin: originOf(o), Created: r.CreationTimestamp.Time}
	for i := range r.Spec.Rules {
		for j := range r.Spec.Rules[i].BackendRefs {
			m.Stream = append(m.Stream, backendOf(c, o, &r.Spec.Rules[i].BackendRefs[j]))
		}
	}
	return attach(c, ports, o, m)
}
