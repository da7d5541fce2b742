package convert

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// mostListeners bounds those of a Gateway.
const mostListeners = 64

// gateways are the Gateways of a namespace. A further one is made when the last one is full. They
// stand beside the Secrets of the Ingresses, so nothing needs a ReferenceGrant.
type gateways struct {
	namespace, class string
	all              []*gatewayv1.Gateway
	sections         map[string]section // by name
}

// section is a listener.
type section struct {
	gateway  *gatewayv1.Gateway
	listener int
}

func (g *gateways) add(l gatewayv1.Listener) section {
	if len(g.all) == 0 || len(g.all[len(g.all)-1].Spec.Listeners) == mostListeners {
		name := GatewayName
		if n := len(g.all); n > 0 {
			name = fmt.Sprintf("%s-%d", name, n+1)
		}
		g.all = append(g.all, &gatewayv1.Gateway{
			TypeMeta:   metav1.TypeMeta{APIVersion: gatewayv1.GroupVersion.String(), Kind: "Gateway"},
			ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name},
			Spec:       gatewayv1.GatewaySpec{GatewayClassName: gatewayv1.ObjectName(g.class)},
		})
	}
	of := g.all[len(g.all)-1]
	of.Spec.Listeners = append(of.Spec.Listeners, l)
	s := section{of, len(of.Spec.Listeners) - 1}
	g.sections[string(l.Name)] = s
	return s
}

func (s section) ref() gatewayv1.ParentReference {
	name := s.gateway.Spec.Listeners[s.listener].Name
	return gatewayv1.ParentReference{Name: gatewayv1.ObjectName(s.gateway.Name), SectionName: &name}
}

// plain returns the reference to the listener of plain HTTP, which is for all names.
func (g *gateways) plain() gatewayv1.ParentReference {
	s, ok := g.sections["http"]
	if !ok {
		s = g.add(gatewayv1.Listener{Name: "http", Port: gatewayv1.PortNumber(ports.HTTP),
			Protocol: gatewayv1.HTTPProtocolType})
	}
	return s.ref()
}

// secure returns the reference to the listener of a name with TLS. Its certificates are those of
// all Ingresses with that name.
func (g *gateways) secure(host string, secret types.NamespacedName) gatewayv1.ParentReference {
	name := "https"
	if host != "" {
		name += "-" + strings.Replace(host, "*", "wildcard", 1)
	}
	s, ok := g.sections[name]
	if !ok {
		l := gatewayv1.Listener{Name: gatewayv1.SectionName(name), Port: gatewayv1.PortNumber(ports.HTTPS),
			Protocol: gatewayv1.HTTPSProtocolType,
			TLS:      &gatewayv1.ListenerTLSConfig{}}
		if host != "" {
			l.Hostname = new(gatewayv1.Hostname(host))
		}
		s = g.add(l)
	}
	tls := s.gateway.Spec.Listeners[s.listener].TLS
	for _, ref := range tls.CertificateRefs {
		if string(ref.Name) == secret.Name {
			return s.ref()
		}
	}
	tls.CertificateRefs = append(tls.CertificateRefs,
		gatewayv1.SecretObjectReference{Name: gatewayv1.ObjectName(secret.Name)})
	return s.ref()
}
