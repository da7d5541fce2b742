package translate

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/edge/gateway/model"
)

// Ingress is the translation of an Ingress.
type Ingress struct {
	Model     *model.Route
	Listeners []model.Listener
	Services  []types.NamespacedName
	// Problems are the fields without effect, for an event. Refused means that the Ingress is not
	// served because of one of them.
	Problems []string
	Refused  bool
	// Taken says which ports the Ingress lacks, because Services have them.
	Taken []string
}

// TranslateIngress translates an Ingress of our class.
func TranslateIngress(c Cluster, ports Ports, in *networkingv1.Ingress) Ingress {
	name := types.NamespacedName{Namespace: in.Namespace, Name: in.Name}
	out := Ingress{
		Model: &model.Route{Origin: model.Origin{Kind: "Ingress", NamespacedName: name},
			Created: in.CreationTimestamp.Time}}
	options := readAnnotations(in)
	out.Problems, out.Refused = options.problems, options.refused
	if out.Refused {
		return out
	}
	certificates, more := certificatesOfIngress(in)
	if more {
		out.Problems = append(out.Problems,
			fmt.Sprintf("spec.tls names more than %d Secrets: the first %d are used", MostSecrets, MostSecrets))
	}
	plain, secure := hostsOf(in)
	// One place for each host: a rule of one host is not one of another.
	routes := map[string][]model.Rule{}
	for i := range in.Spec.Rules {
		rule := &in.Spec.Rules[i]
		host := strings.ToLower(rule.Host)
		if rule.HTTP == nil {
			continue
		}
		for j := range rule.HTTP.Paths {
			routes[host] = append(routes[host], out.path(c, in, options, &rule.HTTP.Paths[j]))
		}
	}
	if in.Spec.DefaultBackend != nil {
		rule := model.Rule{Matches: []model.Match{{}}, Action: options.action}
		rule.Action.Backends = []model.Backend{out.backend(c, in, options, in.Spec.DefaultBackend)}
		routes[""] = append(routes[""], rule)
	}
	created := in.CreationTimestamp.Time
	for _, host := range out.free(ports, ports.HTTP, plain) {
		out.Listeners = append(out.Listeners,
			model.Listener{Port: ports.HTTP, Serve: model.HTTP, Hostname: host, Created: created})
		out.place(ports.HTTP, model.HTTP, host, options.onHTTP(routes[host], slices.Contains(secure, host)))
	}
	for _, host := range out.free(ports, ports.HTTPS, secure) {
		l := model.Listener{Port: ports.HTTPS, Serve: model.HTTPS, Hostname: host, SelfSigned: true, Created: created}
		secret, _ := secretOf(in, host)
		if name := (types.NamespacedName{Namespace: in.Namespace, Name: secret}); slices.Contains(certificates, name) {
			l.Certificates = []types.NamespacedName{name}
		}
		out.Listeners = append(out.Listeners, l)
		out.place(ports.HTTPS, model.HTTPS, host, routes[host])
	}
	return out
}

// hostsOf returns the names of an Ingress at the port of HTTP, and those at the port of HTTPS.
func hostsOf(in *networkingv1.Ingress) (plain, secure []string) {
	var all []string
	for i := range in.Spec.Rules {
		all = append(all, strings.ToLower(in.Spec.Rules[i].Host))
	}
	if in.Spec.DefaultBackend != nil {
		all = append(all, "")
	}
	for _, host := range all {
		plain = with(plain, host)
		if _, ok := secretOf(in, host); ok {
			secure = with(secure, host)
		}
	}
	return plain, secure
}

// IngressPorts returns the ports that an Ingress of our class needs.
func IngressPorts(ports Ports, in *networkingv1.Ingress) (all []uint16) {
	if readAnnotations(in).refused {
		return nil
	}
	plain, secure := hostsOf(in)
	if len(plain) > 0 {
		all = append(all, ports.HTTP)
	}
	if len(secure) > 0 {
		all = append(all, ports.HTTPS)
	}
	return all
}

// free returns the hosts that are served at a port: none while a Service has it.
func (out *Ingress) free(ports Ports, port uint16, hosts []string) []string {
	by := ports.Taken[port]
	if by == "" || len(hosts) == 0 {
		return hosts
	}
	out.Taken = append(out.Taken, takenText(port, by))
	return nil
}

func with(all []string, name string) []string {
	if slices.Contains(all, name) {
		return all
	}
	return append(all, name)
}

// place serves rules at one host.
func (out *Ingress) place(port uint16, serve model.Serve, host string, rules []model.Rule) {
	at := model.Place{Port: port, Serve: serve, Hosts: []string{host}, OneLabel: true, Rules: []int{}}
	for _, r := range rules {
		at.Rules = append(at.Rules, len(out.Model.Rules))
		out.Model.Rules = append(out.Model.Rules, r)
	}
	out.Model.Places = append(out.Model.Places, at)
}

// secretOf returns the Secret for a host, which may be "" where an Ingress wants TLS without naming
// one; false without TLS.
func secretOf(in *networkingv1.Ingress, host string) (string, bool) {
	for _, t := range in.Spec.TLS {
		if len(t.Hosts) == 0 ||
			slices.ContainsFunc(t.Hosts, func(h string) bool { return covers(strings.ToLower(h), host) }) {
			return t.SecretName, true
		}
	}
	return "", false
}

// covers reports whether a name with a star for one label, or without, includes a host.
func covers(name, host string) bool {
	if name == host {
		return true
	}
	suffix, star := strings.CutPrefix(name, "*.")
	_, parent, dot := strings.Cut(host, ".")
	return star && dot && parent == suffix
}

// MostSecrets is how many Secrets with certificates an Ingress, a Gateway or a ListenerSet may
// name. A gateway watches each.
const MostSecrets = 100

// IngressSecrets returns the Secrets that an Ingress may use for TLS and for passwords; none for
// one that is not served.
func IngressSecrets(in *networkingv1.Ingress) (certificates, users []types.NamespacedName) {
	options := readAnnotations(in)
	if options.refused {
		return nil, nil
	}
	if basic := options.action.Access.Basic; basic != nil {
		users = append(users, basic.Secret)
	}
	certificates, _ = certificatesOfIngress(in)
	return certificates, users
}

// certificatesOfIngress are the Secrets with certificates; more is set if there are too many.
func certificatesOfIngress(in *networkingv1.Ingress) (all []types.NamespacedName, more bool) {
	for _, t := range in.Spec.TLS {
		name := types.NamespacedName{Namespace: in.Namespace, Name: t.SecretName}
		switch {
		case t.SecretName == "" || slices.Contains(all, name):
		case len(all) == MostSecrets:
			return all, true
		default:
			all = append(all, name)
		}
	}
	return all, false
}

func (out *Ingress) path(
	c Cluster, in *networkingv1.Ingress, options *annotations, p *networkingv1.HTTPIngressPath,
) model.Rule {
	m := model.Match{Path: p.Path}
	if m.Path == "" {
		m.Path = "/"
	}
	kind := value(p.PathType, networkingv1.PathTypeImplementationSpecific)
	switch {
	case kind == networkingv1.PathTypeExact:
		m.Kind = model.Exact
	case options.regex: // as ingress-nginx has it, whatever the kind of the path
		pattern, err := regexp.Compile("(?i)^" + m.Path)
		if err != nil {
			out.Problems = append(out.Problems, fmt.Sprintf("the path %q is no regular expression: %v", p.Path, err))
			return model.Rule{}
		}
		m.Kind, m.Pattern = model.Regex, pattern
	}
	rule := model.Rule{Matches: []model.Match{m}, Action: options.action}
	if r := options.action.Filters.Rewrite; r != nil && r.Path.Groups != nil && m.Kind == model.Exact {
		rule.Action.Filters.Rewrite = &model.Rewrite{Path: model.PathChange{Full: new(withoutGroups(*r.Path.Groups))}}
	}
	rule.Action.Backends = []model.Backend{out.backend(c, in, options, &p.Backend)}
	return rule
}

// groups are the places of groups in the target of a rewrite.
var groups = regexp.MustCompile(`\$[0-9]+`)

// withoutGroups is the target of a rewrite for a path that has no groups.
func withoutGroups(target string) string {
	path := groups.ReplaceAllString(target, "")
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return path
}

func (out *Ingress) backend(
	c Cluster, in *networkingv1.Ingress, options *annotations, ref *networkingv1.IngressBackend,
) model.Backend {
	b := model.Backend{Weight: 1, Protocol: options.protocol}
	problem := func(text string) model.Backend {
		b.Invalid = text
		out.Problems = append(out.Problems, text)
		return b
	}
	if ref.Service == nil {
		return problem("a backend is no Service; only Services are supported")
	}
	b.Service = types.NamespacedName{Namespace: in.Namespace, Name: ref.Service.Name}
	b.Port, b.PortName = ref.Service.Port.Number, ref.Service.Port.Name
	if !slices.Contains(out.Services, b.Service) {
		out.Services = append(out.Services, b.Service)
	}
	service := c.Service(b.Service)
	if service == nil {
		return problem(fmt.Sprintf("there is no Service %s", b.Service))
	}
	if !slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool {
		return b.PortName != "" && p.Name == b.PortName || b.PortName == "" && p.Port == b.Port
	}) {
		return problem(fmt.Sprintf("the Service %s has no port %s", b.Service, portText(&b)))
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return problem(fmt.Sprintf("the Service %s is an ExternalName, which is no backend", b.Service))
	}
	return b
}

func portText(b *model.Backend) string {
	if b.PortName != "" {
		return b.PortName
	}
	return fmt.Sprint(b.Port)
}
