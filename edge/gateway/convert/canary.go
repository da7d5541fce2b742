package convert

import (
	"regexp"
	"slices"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// mergeCanaries puts the backends of canaries into the rules that they take requests from. A canary
// gets no routes of its own.
func mergeCanaries(all []*conversion) {
	var mains []*conversion
	for _, c := range all {
		if c.canary == nil && !c.LeftOut {
			mains = append(mains, c)
		}
	}
	for _, c := range all {
		if c.canary == nil {
			continue
		}
		if !c.LeftOut {
			c.merge(mains)
		}
		c.hosts = nil
	}
}

func (c *conversion) merge(mains []*conversion) {
	if c.canary.Cookie != "" {
		c.lose("%s: the Gateway API has no match of cookies", c.named("canary-by-cookie"))
	}
	for _, h := range c.hosts {
		for _, r := range h.plain {
			found := false
			for _, main := range mains {
				if main.Name.Namespace != c.Name.Namespace {
					continue
				}
				for _, of := range main.hosts {
					if of.name == h.name {
						plain := c.share(&of.plain, &r)
						found = c.share(&of.secure, &r) || plain || found
					}
				}
			}
			if !found {
				c.leaveOut("no converted Ingress of the namespace has the path %s of %s, of which it takes a share",
					r.path, hostText(h.name))
			}
		}
	}
}

// share gives a canary its part of the rules with its path; false if there are none.
func (c *conversion) share(rules *[]rule, canary *rule) (found bool) {
	var out []rule
	for _, r := range *rules {
		if r.kind != canary.kind || r.path != canary.path || len(r.BackendRefs) == 0 || r.derived() {
			out = append(out, r)
			continue
		}
		found = true
		out = append(out, c.byHeader(&r, canary)...)
		if total := c.canary.Total; c.canary.Weight > 0 && total > 0 {
			weight := int32(min(c.canary.Weight, total))
			main, own := r.BackendRefs[0], canary.BackendRefs
			main.Weight = new(int32(total) - weight)
			r.BackendRefs = []gatewayv1.HTTPBackendRef{main}
			for _, ref := range own {
				ref.Weight = &weight
				r.BackendRefs = append(r.BackendRefs, ref)
			}
		}
		out = append(out, r)
	}
	*rules = out
	return found
}

// derived reports whether a rule was made for a canary's header.
func (r *rule) derived() bool { return len(r.Matches[0].Headers) > 0 }

// byHeader returns the rules for requests with the canary's header.
func (c *conversion) byHeader(main, canary *rule) []rule {
	if c.canary.Header == "" {
		return nil
	}
	with := func(text string, pattern bool, refs []gatewayv1.HTTPBackendRef) rule {
		r := rule{HTTPRouteRule: *main.DeepCopy(), kind: main.kind, path: main.path}
		h := gatewayv1.HTTPHeaderMatch{Name: gatewayv1.HTTPHeaderName(c.canary.Header), Value: text}
		if pattern {
			h.Type = new(gatewayv1.HeaderMatchRegularExpression)
		}
		r.Matches[0].Headers, r.BackendRefs = []gatewayv1.HTTPHeaderMatch{h}, slices.Clone(refs)
		return r
	}
	switch of := c.canary; {
	case of.HeaderPattern != nil:
		return []rule{with(whole(of.HeaderPattern), true, canary.BackendRefs)}
	case of.HeaderValue != "":
		return []rule{with(of.HeaderValue, false, canary.BackendRefs)}
	}
	return []rule{with("always", false, canary.BackendRefs), with("never", false, main.BackendRefs)}
}

// whole is an expression for a whole text that contains what p matches.
func whole(p *regexp.Regexp) string { return ".*(?:" + p.String() + ").*" }
