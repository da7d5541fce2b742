// Package gatewayauth lets the gateway of the nodes read the Secrets that a listener or a Gateway
// names and may use, and the ConfigMaps with CAs that a BackendTLSPolicy or a Gateway names, one by
// one, and no others. What else the gateway reads is in its role.
package gatewayauth

import (
	"context"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// Account is the service account of the gateway.
var Account = types.NamespacedName{Namespace: metav1.NamespaceSystem, Name: "barque-gateway"}

// TokenSeconds is how long a token of the account is valid that a node requests. Without a
// request of its own it is as long, by default.
const TokenSeconds = 3600

// User is the name by which the API knows it.
var User = serviceaccount.MakeUsername(Account.Namespace, Account.Name)

// Names reports whether an object that the gateway serves names a Secret or a ConfigMap and may use
// it. The resource is secrets or configmaps.
type Names func(resource, namespace, name string) bool

// Authorizer decides about the gateway's requests for Secrets and ConfigMaps, and leaves all others
// to the one in it.
type Authorizer struct {
	authorizer.Authorizer
	names Names
}

// New returns an authorizer before another one. Without names, the gateway reads nothing.
func New(next authorizer.Authorizer, names Names) *Authorizer {
	return &Authorizer{next, names}
}

// Authorize implements authorizer.Authorizer.
func (a *Authorizer) Authorize(ctx context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.allows(attrs) {
		return authorizer.DecisionAllow, "", nil
	}
	return a.Authorizer.Authorize(ctx, attrs)
}

// ConditionsAwareAuthorize implements authorizer.Authorizer; there are no conditions.
func (a *Authorizer) ConditionsAwareAuthorize(
	ctx context.Context, attrs authorizer.Attributes,
) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(a.Authorize(ctx, attrs))
}

func (a *Authorizer) allows(attrs authorizer.Attributes) bool {
	if a.names == nil || attrs.GetUser().GetName() != User || !attrs.IsResourceRequest() {
		return false
	}
	resource := attrs.GetResource()
	if attrs.GetAPIGroup() != "" || resource != "secrets" && resource != "configmaps" || attrs.GetSubresource() != "" {
		return false
	}
	switch attrs.GetVerb() {
	case "get", "list", "watch":
		return attrs.GetNamespace() != "" && attrs.GetName() != "" &&
			a.names(resource, attrs.GetNamespace(), attrs.GetName())
	}
	return false
}

// watchTime bounds the gateway's watches of Secrets and ConfigMaps. A watch is authorized at its
// beginning, so that is how long the right to read lasts behind the end of the reference. The
// gateway watches again.
const watchTime = 5 * time.Minute

// Bounded wraps the handler of authenticated requests, and ends the gateway's watches after
// watchTime, whatever time they ask for.
func Bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, known := request.UserFrom(r.Context())
		info, ok := request.RequestInfoFrom(r.Context())
		if !known || !ok || client.GetName() != User || info.Verb != "watch" ||
			info.Resource != "secrets" && info.Resource != "configmaps" {
			next.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), watchTime)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}
