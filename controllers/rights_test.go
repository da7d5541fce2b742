package controllers_test

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	listers "k8s.io/client-go/listers/rbac/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/apiserver/rbac"
	"github.com/barque/barque/controllers"
)

// rights are the controllers' rights by the default roles of a cluster, and those that a scenario
// has used.
var rights = newRightsOf()

type rightsOf struct {
	authz *rbac.Authorizer

	mu   sync.Mutex
	used map[string]map[string]bool // by user: a verb and a resource
}

func newRightsOf() *rightsOf {
	index := func() cache.Indexer {
		return cache.NewIndexer(cache.MetaNamespaceKeyFunc,
			cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
	roles, bindings, clusterRoles, clusterBindings := index(), index(), index(), index()
	for _, o := range rbac.DefaultRoles() {
		_ = roles.Add(&o) // it fails only without a name
	}
	for _, o := range rbac.DefaultRoleBindings() {
		_ = bindings.Add(&o)
	}
	for _, o := range rbac.DefaultClusterRoles() {
		_ = clusterRoles.Add(&o)
	}
	for _, o := range rbac.DefaultClusterRoleBindings() {
		_ = clusterBindings.Add(&o)
	}
	return &rightsOf{used: map[string]map[string]bool{},
		authz: rbac.NewAuthorizer(listers.NewRoleLister(roles), listers.NewRoleBindingLister(bindings),
			listers.NewClusterRoleLister(clusterRoles), listers.NewClusterRoleBindingLister(clusterBindings))}
}

// userOf has the groups of a user of a controller.
func userOf(name string) user.Info {
	return &user.DefaultInfo{Name: name, Groups: append(rbac.GroupsOf(name), user.AllAuthenticated)}
}

// right writes a verb and a resource.
func right(verb, group, resource, sub string) string {
	return strings.Trim(strings.Join([]string{verb, strings.Trim(group+"/"+resource+"/"+sub, "/")}, " "), "/")
}

func (r *rightsOf) authorize(t *testing.T, a authorizer.AttributesRecord) error {
	decision, reason, err := r.authz.Authorize(t.Context(), a)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.used[a.User.GetName()] == nil {
		r.used[a.User.GetName()] = map[string]bool{}
	}
	if a.ResourceRequest {
		r.used[a.User.GetName()][right(a.Verb, a.APIGroup, a.Resource, a.Subresource)] = true
	}
	if err == nil && decision == authorizer.DecisionAllow {
		return nil
	}
	err = fmt.Errorf("%s may not %s %s/%s %s in %q (%s) %s: %v", a.User.GetName(), a.Verb, a.APIGroup, a.Resource,
		a.Subresource, a.Namespace, reason, a.Path, err)
	t.Error(err)
	return apierrors.NewForbidden(schema.GroupResource{Group: a.APIGroup, Resource: a.Resource}, a.Name, err)
}

// may reports whether a user may do something.
func (r *rightsOf) may(t *testing.T, name string, a clienttesting.Action) error {
	at := authorizer.AttributesRecord{User: userOf(name), Verb: strings.ReplaceAll(a.GetVerb(), "-", ""),
		Namespace: a.GetNamespace(), APIGroup: a.GetResource().Group,
		APIVersion: a.GetResource().Version, Resource: a.GetResource().Resource, Subresource: a.GetSubresource(),
		ResourceRequest: true}
	if at.Subresource == "finalize" {
		at.Verb = "update" // the typed client writes so
	}
	switch a := a.(type) {
	case clienttesting.UpdateActionImpl: // which has the interface of the next one, without its method
		if m, ok := a.GetObject().(metav1.Object); ok {
			at.Name = m.GetName()
		}
	case interface{ GetName() string }:
		at.Name = a.GetName()
	}
	if err := r.authorize(t, at); err != nil {
		return err
	}
	if at.Resource == "resourceclaims" && at.Subresource == "status" {
		// Validation asks for this where allocation or reservations change, which is all that the
		// controller writes there.
		at.Subresource = "binding"
		return r.authorize(t, at)
	}
	return nil
}

// mayRequest is may for a request of HTTP.
func (r *rightsOf) mayRequest(t *testing.T, name string, req *http.Request) error {
	info, err := (&request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"),
		GrouplessAPIPrefixes: sets.NewString("api")}).NewRequestInfo(req)
	if err != nil {
		return err
	}
	return r.authorize(t,
		authorizer.AttributesRecord{User: userOf(name), Verb: info.Verb, Namespace: info.Namespace,
			APIGroup: info.APIGroup, APIVersion: info.APIVersion,
			Resource: info.Resource, Subresource: info.Subresource, Name: info.Name,
			ResourceRequest: info.IsResourceRequest, Path: info.Path})
}

// guard allows a user the calls that it has the right to.
func (r *rightsOf) guard(t *testing.T, name string, do call) call {
	return func(a clienttesting.Action) (kruntime.Object, error) {
		if err := r.may(t, name, a); err != nil {
			return nil, err
		}
		return do(a)
	}
}

// unseen are rights that no scenario uses: only a busy or a broken cluster needs them. A new right
// without a scenario is listed here, with the code that needs it.
var unseen = map[string]string{
	"statefulset-controller":    "delete persistentvolumeclaims, get apps/controllerrevisions, patch apps/controllerrevisions, patch pods, update apps/controllerrevisions, update persistentvolumeclaims, update pods",
	"daemon-set-controller":     "get apps/controllerrevisions, patch apps/controllerrevisions, patch pods, update apps/controllerrevisions",
	"deployment-controller":     "get apps/replicasets, patch apps/replicasets",
	"replicaset-controller":     "patch pods",
	"replication-controller":    "delete pods, patch pods",
	"job-controller":            "delete pods",
	"cronjob-controller":        "delete batch/jobs",
	"disruption-controller":     "update pods/status",
	"resource-claim-controller": "delete resource.k8s.io/resourceclaims, get pods",

	"horizontal-pod-autoscaler": "get custom.metrics.k8s.io/*, get external.metrics.k8s.io/*, list custom.metrics.k8s.io/*, list external.metrics.k8s.io/*",

	"barque-api-endpoints": "delete discovery.k8s.io/endpointslices, update discovery.k8s.io/endpointslices, update endpoints",
	// Its provider, which the tests replace, uses these.
	"barque-load-balancers":             "list edge.barque.io/addresspools, patch edge.barque.io/addresspools/status, watch edge.barque.io/addresspools",
	"endpoint-controller":               "delete endpoints, update endpoints",
	"endpointslice-controller":          "delete discovery.k8s.io/endpointslices, update discovery.k8s.io/endpointslices",
	"endpointslicemirroring-controller": "delete discovery.k8s.io/endpointslices, update discovery.k8s.io/endpointslices",

	"node-controller": "get coordination.k8s.io/leases, " +
		// Of cloud-controller-managers, which have this account too.
		"delete nodes, get nodes, get pods, list pods, patch nodes/status, watch nodes, watch pods",
	"root-ca-cert-publisher":              "update configmaps",
	"storage-version-migrator-controller": "update apiextensions.k8s.io/customresourcedefinitions/status",

	"persistent-volume-binder": "delete persistentvolumes, get persistentvolumeclaims, get persistentvolumes",
	"barque-local-provisioner": "create configmaps, create storage.k8s.io/csidrivers, create storage.k8s.io/csistoragecapacities, create storage.k8s.io/storageclasses, " +
		"delete persistentvolumes, delete storage.k8s.io/csistoragecapacities, get configmaps, get nodes, list storage.k8s.io/storageclasses, update persistentvolumeclaims, " +
		"update persistentvolumeclaims/status, update persistentvolumes, update storage.k8s.io/csistoragecapacities",
	"kube-apiserver-serving-clustertrustbundle-publisher": "update certificates.k8s.io/clustertrustbundles",

	user.KubeControllerManager: "delete secrets, get serviceaccounts",
}

// elsewhere reports whether a right is seen by admission, or used by nearly all controllers.
func elsewhere(verb, resource string) bool {
	return resource == "events" || resource == "signers" || strings.HasSuffix(resource, "/finalizers") ||
		verb == "escalate"
}

// mine returns the rules that a user has, and not everybody with an account in kube-system.
func (r *rightsOf) mine(t *testing.T, name string) (mine []rbacv1.PolicyRule) {
	t.Helper()
	namespaces := sets.New("") // without one, the rules of ClusterRoles
	for _, b := range rbac.DefaultRoleBindings() {
		namespaces.Insert(b.Namespace)
	}
	rules := func(name string) (all []rbacv1.PolicyRule) {
		for namespace := range namespaces {
			found, err := r.authz.Rules(userOf(name), namespace)
			if err != nil {
				t.Error(err)
			}
			all = append(all, found...)
		}
		return all
	}
	others := rules(serviceaccount.MakeUsername(metav1.NamespaceSystem, "nobody"))
	for _, rule := range rules(name) {
		same := func(o rbacv1.PolicyRule) bool { return apiequality.Semantic.DeepEqual(o, rule) }
		// The configuration that extension API servers read, which upstream lets this user see.
		reader := slices.Contains(rule.ResourceNames, "extension-apiserver-authentication")
		if !reader && !slices.ContainsFunc(others, same) {
			mine = append(mine, rule)
		}
	}
	return mine
}

// TestRightsAreUsed runs each scenario with the rights that controllers have in a cluster. A
// request that they do not have fails it, and so does a right that no request needs.
func TestRightsAreUsed(t *testing.T) {
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			for _, kill := range []int{0, 1} {
				s.run(t, kill, true, func(string) time.Duration { return 0 })
			}
		})
	}
	for _, name := range slices.Compact(slices.Sorted(maps.Values(controllers.Users()))) {
		_, account, _ := serviceaccount.SplitUsername(name)
		reasons := strings.Split(unseen[cmp.Or(account, name)], ", ")
		has := map[string]bool{"": true}
		for _, rule := range rights.mine(t, name) {
			for _, verb := range rule.Verbs {
				for _, resource := range rule.Resources {
					plain, sub, _ := strings.Cut(resource, "/")
					is := right(verb, rule.APIGroups[0], plain, sub)
					has[is] = true
					if rule.APIGroups[0] != "*" && !rights.used[name][is] && !elsewhere(verb, resource) &&
						!slices.Contains(reasons, is) {
						t.Errorf("no scenario uses this right of %s: %s; remove it, or name it in unseen", name, is)
					}
				}
			}
		}
		if len(has) == 1 {
			t.Errorf("%s has no rights", name)
		}
		for _, is := range reasons {
			if !has[is] {
				t.Errorf("unseen names a right that %s has not: %s", name, is)
			}
		}
	}
}

// TestControllersAreInTheControlPlane: the API server knows every controller's user as one of the
// control plane, for refusals and reads. Each such user is a controller's or the scheduler's.
func TestControllersAreInTheControlPlane(t *testing.T) {
	var got []string
	for _, name := range controllers.Users() {
		got = append(got, name)
		if namespace, account, err := serviceaccount.SplitUsername(name); err == nil &&
			!rbac.IsController(namespace, account) && account != "node-controller" {
			t.Errorf("%s has no role", name)
		}
	}
	// The leader writes the statuses of routes, and makes the Services of Gateways, beside the
	// controllers.
	// Each server describes its files.
	got = append(got, user.KubeScheduler, serviceaccount.MakeUsername(metav1.NamespaceSystem, "barque-gateway-status"),
		serviceaccount.MakeUsername(metav1.NamespaceSystem, "barque-gateway-addresses"),
		serviceaccount.MakeUsername(metav1.NamespaceSystem, "barque-manifest-files"))
	slices.Sort(got)
	if want := slices.Sorted(slices.Values(rbac.ControlPlane())); !slices.Equal(slices.Compact(got), want) {
		t.Errorf("the users of controllers are %q, and those with roles %q", got, want)
	}
}
