package gateway

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/edge/gateway/model"
	"github.com/barque/barque/edge/gateway/translate"
	"github.com/barque/barque/internal/balancers"
)

// Fault is a fault of a route or a listener for which clients get errors. No condition of upstream
// is for it, or nobody looks at the conditions.
type Fault struct {
	// Object is such as "Ingress default/web". Mend is a command.
	Object, Text, Mend string
}

// routed is an object that is served, with all that can be wrong around it.
type routed struct {
	origin       model.Origin
	services     []types.NamespacedName
	certificates []certificate
	// fault is the reason for which a Gateway has no address, or "".
	fault string
}

// certificate is the need of one name.
type certificate struct {
	host    string
	secrets []types.NamespacedName
}

// certificatesFor are those that listeners need.
func certificatesFor(listeners []model.Listener) (all []certificate) {
	for _, l := range listeners {
		if (l.Serve == model.HTTPS || l.Serve == model.Terminate) && len(l.Certificates) > 0 {
			all = append(all, certificate{l.Hostname, l.Certificates})
		}
	}
	return all
}

// open are the listeners that serve.
func open(listeners []translate.Listener) (all []model.Listener) {
	for _, l := range listeners {
		if l.Serves {
			all = append(all, l.Model)
		}
	}
	return all
}

// Faults returns the faults of routes as they are now, in order; none on a server that does not
// lead.
func (s *Statuses) Faults(now time.Time) (all []Fault) {
	routes := s.routed.Load()
	if routes == nil {
		return nil
	}
	users := map[types.NamespacedName][]string{}
	for _, r := range *routes {
		object := r.origin.Kind + " " + r.origin.String()
		for _, name := range r.services {
			if !slices.Contains(users[name], object) {
				users[name] = append(users[name], object)
			}
		}
		if r.fault != "" {
			all = append(all, Fault{object, "it has no address: " + r.fault,
				fmt.Sprintf("barque kubectl -n %s describe gateway %s", r.origin.Namespace, r.origin.Name)})
		}
		for _, c := range r.certificates {
			if text, secret := s.certificateFault(c, now); text != "" {
				all = append(all, Fault{object, text,
					fmt.Sprintf(
						"barque kubectl -n %s create secret tls %s --cert FILE --key FILE --dry-run=client -o yaml | barque kubectl apply -f -",
						secret.Namespace, secret.Name)})
			}
		}
	}
	for name, objects := range users {
		text := s.backendFault(name)
		if text == "" {
			continue
		}
		slices.Sort(objects)
		object := objects[0]
		if more := len(objects) - 1; more > 0 {
			object += fmt.Sprintf(" and %d more", more)
		}
		all = append(all, Fault{object, text,
			fmt.Sprintf("barque kubectl -n %s describe service %s", name.Namespace, name.Name)})
	}
	slices.SortFunc(all, func(a, b Fault) int {
		return strings.Compare(a.Object+"\x00"+a.Text,
			b.Object+"\x00"+b.Text)
	})
	return all
}

// backendFault returns why no request reaches a Service; "" if some do.
func (s *Statuses) backendFault(name types.NamespacedName) string {
	if (view{Objects: s.objects}).Service(name) == nil {
		return fmt.Sprintf("there is no Service %s", name)
	}
	found, err := s.objects.slices.GetIndexer().ByIndex(serviceIndex, name.String())
	if err != nil {
		return "" // the index is there: NewObjects has added it
	}
	for _, obj := range found {
		if slice, ok := obj.(*discoveryv1.EndpointSlice); ok && balancers.HasReady(slice) {
			return ""
		}
	}
	return fmt.Sprintf("the Service %s has no ready endpoint, so requests are answered with 503", name)
}

// certificateFault returns why clients refuse each certificate for a name, with a Secret to be
// changed; "" if one is right.
func (s *Statuses) certificateFault(c certificate, now time.Time) (text string, secret types.NamespacedName) {
	for _, name := range c.secrets {
		fault := ""
		if err := s.secrets.Problem(name); err != nil {
			fault = err.Error()
		} else {
			fault = misfit(s.secrets.Certificate(name), c.host, now)
		}
		if fault == "" {
			return "", secret
		}
		if text == "" {
			text, secret = fmt.Sprintf("the Secret %s: %s", name, fault), name
		}
	}
	return text, secret
}

// certificateEvents are the faults of an Ingress's certificates that are certain: a Secret that is
// not read yet may be right.
func (s *Statuses) certificateEvents(listeners []model.Listener, now time.Time) (all []string) {
	for _, c := range certificatesFor(listeners) {
		if slices.ContainsFunc(c.secrets,
			func(n types.NamespacedName) bool { return errors.Is(s.secrets.Problem(n), errAbsent) }) {
			continue
		}
		if text, _ := s.certificateFault(c, now); text != "" {
			all = append(all, text)
		}
	}
	return all
}

// namesShown bounds the names of a certificate in a text.
const namesShown = 3

// misfit returns why clients refuse a certificate for a name; "" is every name.
func misfit(pair *tls.Certificate, host string, now time.Time) string {
	if pair == nil || pair.Leaf == nil {
		return ""
	}
	leaf := pair.Leaf
	switch {
	case now.After(leaf.NotAfter):
		return "its certificate ended at " + leaf.NotAfter.UTC().Format(time.RFC3339)
	case now.Before(leaf.NotBefore):
		return "its certificate begins at " + leaf.NotBefore.UTC().Format(time.RFC3339)
	case host == "":
		return ""
	}
	// A name with a star needs a certificate with the same star.
	if leaf.VerifyHostname(strings.Replace(host, "*", "any-name", 1)) == nil {
		return ""
	}
	names := leaf.DNSNames
	if len(names) > namesShown {
		names = append(slices.Clone(names[:namesShown]), fmt.Sprintf("%d more", len(leaf.DNSNames)-namesShown))
	}
	if len(names) == 0 {
		return fmt.Sprintf("its certificate is for no name, and not for %s", host)
	}
	return fmt.Sprintf("its certificate is for %s, and not for %s", strings.Join(names, ", "), host)
}
