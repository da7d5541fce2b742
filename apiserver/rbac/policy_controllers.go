package rbac

import (
	"slices"
	"strings"
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Prefixes of the names of the controllers' roles. The first one is upstream's, and so are the
// roles; the second one is for controllers that only Barque has.
const (
	controllerRole    = "system:controller:"
	ownControllerRole = "barque:controller:"
)

// APIEndpointsUser is the controller of the endpoints of the Service by which pods find the API.
const APIEndpointsUser = "system:serviceaccount:" + metav1.NamespaceSystem + ":barque-api-endpoints"

// controller is the service account of a controller in kube-system, and its rights. A right that
// no controller here uses is left out, although upstream's role has it: informers, above all, are
// the API server's own and read with its rights. Some controllers share an account, as upstream's
// do.
type controller struct {
	account string
	own     bool // upstream has no such controller
	// shared is set if cloud-controller-managers use the account too, and get tokens for it.
	shared bool
	rules  []rbacv1.PolicyRule
	// within are rules for one namespace only.
	within map[string][]rbacv1.PolicyRule
}

func (c controller) role() string {
	if c.own {
		return ownControllerRole + strings.TrimPrefix(c.account, "barque-")
	}
	return controllerRole + c.account
}

func (c controller) subject() rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: c.account}
}

// ControlPlane returns the users of the controllers and of the scheduler.
func ControlPlane() []string {
	users := []string{user.KubeControllerManager, user.KubeScheduler}
	for _, c := range controllers() {
		users = append(users, serviceaccount.MakeUsername(metav1.NamespaceSystem, c.account))
	}
	return users
}

// GroupsOf returns the groups of a user of the control plane. The scheduler has none.
func GroupsOf(name string) []string {
	namespace, _, err := serviceaccount.SplitUsername(name)
	if err != nil {
		return nil
	}
	return serviceaccount.MakeGroupNames(namespace)
}

// IsController reports whether a service account is that of a controller in the servers' processes,
// and of no other program.
func IsController(namespace, name string) bool {
	return namespace == metav1.NamespaceSystem && accounts()[name]
}

// IsOwnUser reports whether a user is the API server, the scheduler or a controller in the servers'
// processes, and no other program. No token counts for such a user, no request for a certificate
// may name it, and only administrators may act as it.
func IsOwnUser(name string) bool {
	switch name {
	case user.APIServerUser, user.KubeControllerManager, user.KubeScheduler:
		return true
	}
	namespace, account, err := serviceaccount.SplitUsername(name)
	return err == nil && IsController(namespace, account)
}

var accounts = sync.OnceValue(func() map[string]bool {
	all := map[string]bool{}
	for _, c := range controllers() {
		all[c.account] = !c.shared
	}
	return all
})

// events are rights to record events.
func events() rbacv1.PolicyRule { return on("", verbs("create", "patch"), "events") }

// blocks is the right to keep owners of a resource until their dependents are gone. Admission
// requires it where OwnerReferencesPermissionEnforcement is switched on.
func blocks(group, resource string) rbacv1.PolicyRule {
	return on(group, verbs("update"), resource+"/finalizers")
}

// named narrows a rule to objects of these names.
func named(rule rbacv1.PolicyRule, names ...string) rbacv1.PolicyRule {
	rule.ResourceNames = names
	return rule
}

// controllers returns all of them. A test of package controllers runs each controller with these
// rights, and another one compares them with docs/rights.md.
func controllers() []controller {
	return slices.Concat(workloadControllers(), networkControllers(), nodeControllers(), clusterControllers(),
		storageControllers(), credentialControllers(), addonControllers())
}

func workloadControllers() []controller {
	return []controller{
		{account: "deployment-controller", rules: []rbacv1.PolicyRule{
			on("apps", verbs("get", "list"), "deployments"),
			on("apps", verbs("update"), "deployments/status"),
			blocks("apps", "deployments"),
			on("apps", verbs("get", "list", "create", "update", "patch", "delete"), "replicasets"),
			events(),
		}},
		{account: "replicaset-controller", rules: []rbacv1.PolicyRule{
			on("apps", verbs("get", "list"), "replicasets"),
			on("apps", verbs("update"), "replicasets/status"),
			blocks("apps", "replicasets"),
			on("", verbs("list", "create", "patch", "delete"), "pods"),
			events(),
		}},
		{account: "replication-controller", rules: []rbacv1.PolicyRule{
			on("", verbs("get", "list"), "replicationcontrollers"),
			on("", verbs("update"), "replicationcontrollers/status"),
			blocks("", "replicationcontrollers"),
			on("", verbs("list", "create", "patch", "delete"), "pods"),
			events(),
		}},
		{account: "job-controller", rules: []rbacv1.PolicyRule{
			on("batch", verbs("get", "list"), "jobs"),
			on("batch", verbs("update"), "jobs/status"),
			blocks("batch", "jobs"),
			on("", verbs("list", "create", "patch", "delete"), "pods"),
			events(),
		}},
		{account: "cronjob-controller", rules: []rbacv1.PolicyRule{
			on("batch", verbs("get"), "cronjobs"),
			on("batch", verbs("update"), "cronjobs/status"),
			blocks("batch", "cronjobs"),
			on("batch", verbs("get", "create", "delete"), "jobs"),
			events(),
		}},
		{account: "ttl-after-finished-controller", rules: []rbacv1.PolicyRule{
			on("batch", verbs("delete"), "jobs"),
		}},
		{account: "daemon-set-controller", rules: []rbacv1.PolicyRule{
			on("apps", verbs("get"), "daemonsets"),
			on("apps", verbs("update"), "daemonsets/status"),
			blocks("apps", "daemonsets"),
			on("", verbs("list", "create", "patch", "delete"), "pods"),
			on("apps", verbs("get", "create", "update", "patch", "delete"), "controllerrevisions"),
			events(),
		}},
		{account: "statefulset-controller", rules: []rbacv1.PolicyRule{
			on("apps", verbs("get"), "statefulsets"),
			on("apps", verbs("update"), "statefulsets/status"),
			blocks("apps", "statefulsets"),
			blocks("", "pods"),
			on("", verbs("list", "create", "update", "patch", "delete"), "pods"),
			on("apps", verbs("get", "create", "update", "patch", "delete"), "controllerrevisions"),
			// Admission demands the right to delete from a user that gives a claim an owner.
			on("", verbs("create", "update", "delete"), "persistentvolumeclaims"),
			events(),
		}},
		{account: "disruption-controller", rules: []rbacv1.PolicyRule{
			on("policy", verbs("update"), "poddisruptionbudgets/status"),
			on("", verbs("update"), "pods/status"),
			on("*", verbs("get"), "*/scale"),
			events(),
		}},
		{account: "horizontal-pod-autoscaler", rules: []rbacv1.PolicyRule{
			on("autoscaling", verbs("update"), "horizontalpodautoscalers/status"),
			on("*", verbs("get", "update"), "*/scale"),
			on("metrics.k8s.io", verbs("list"), "pods"),
			on("custom.metrics.k8s.io", verbs("get", "list"), "*"),
			on("external.metrics.k8s.io", verbs("get", "list"), "*"),
			events(),
		}},
		{account: "resource-claim-controller", rules: []rbacv1.PolicyRule{
			on("resource.k8s.io", verbs("list", "create", "update", "delete"), "resourceclaims"),
			on("resource.k8s.io", verbs("update"), "resourceclaims/status"),
			// Validation of the status demands it for allocation and reservations.
			on("resource.k8s.io", verbs("update"), "resourceclaims/binding"),
			on("", verbs("get"), "pods"),
			on("", verbs("patch"), "pods/status"),
			blocks("", "pods"),
			events(),
		}},
		{account: "device-taint-eviction-controller", rules: []rbacv1.PolicyRule{
			on("", verbs("delete"), "pods"),
			on("", verbs("patch"), "pods/status"),
			on("resource.k8s.io", verbs("patch"), "devicetaintrules/status"),
			events(),
		}},
	}
}

func networkControllers() []controller {
	return []controller{
		{account: "barque-load-balancers", own: true, rules: []rbacv1.PolicyRule{
			on("", verbs("update"), "services/status"),
			on("edge.barque.io", verbs("list", "watch"), "addresspools"),
			on("edge.barque.io", verbs("patch"), "addresspools/status"),
			events(),
		}},
		// The Service kubernetes is in the namespace default.
		{account: "barque-api-endpoints", own: true, within: map[string][]rbacv1.PolicyRule{
			metav1.NamespaceDefault: apiEndpointsRules(),
		}},
		// It writes what became of routes. The gateway itself, on the nodes, writes nothing.
		{account: "barque-gateway-status", own: true, rules: []rbacv1.PolicyRule{
			on("networking.k8s.io", verbs("update"), "ingresses/status"),
			on("gateway.networking.k8s.io", verbs("update"), "gatewayclasses/status", "gateways/status",
				"listenersets/status", "httproutes/status", "grpcroutes/status",
				"tlsroutes/status", "backendtlspolicies/status"),
			events(),
		}},
		// It makes the Services that have the addresses of Gateways.
		{account: "barque-gateway-addresses", own: true, rules: []rbacv1.PolicyRule{
			on("", verbs("create", "update", "delete"), "services"),
		}},
		{account: "endpoint-controller", rules: []rbacv1.PolicyRule{
			on("", verbs("create", "update", "delete"), "endpoints"),
		}},
		{account: "endpointslice-controller", rules: []rbacv1.PolicyRule{
			on("discovery.k8s.io", verbs("create", "update", "delete"), "endpointslices"),
			blocks("", "services"),
			events(),
		}},
		{account: "endpointslicemirroring-controller", rules: []rbacv1.PolicyRule{
			on("discovery.k8s.io", verbs("create", "update", "delete"), "endpointslices"),
			blocks("", "services"),
			blocks("", "endpoints"),
			events(),
		}},
		{account: "service-cidrs-controller", rules: []rbacv1.PolicyRule{
			on("networking.k8s.io", verbs("list", "update"), "servicecidrs"),
			on("networking.k8s.io", verbs("update"), "servicecidrs/status"),
			on("networking.k8s.io", verbs("list"), "ipaddresses"),
		}},
	}
}

func apiEndpointsRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		on("", verbs("create"), "endpoints"),
		named(on("", verbs("update"), "endpoints"), "kubernetes"),
		on("discovery.k8s.io", verbs("create", "update", "delete"), "endpointslices"),
	}
}

func nodeControllers() []controller {
	return []controller{
		// Its rights are upstream's, which cloud-controller-managers rely on.
		{account: "node-controller", shared: true, rules: []rbacv1.PolicyRule{
			on("", verbs("get", "list", "watch", "update", "patch", "delete"), "nodes"),
			on("", verbs("update", "patch"), "nodes/status"),
			on("", verbs("get", "list", "watch", "delete"), "pods"),
			on("", verbs("update", "patch"), "pods/status"),
			on("", verbs("create", "patch", "update"), "events"),
		}, within: map[string][]rbacv1.PolicyRule{
			// The leases of foreign nodes, which are not in gossip.
			"kube-node-lease": {on("coordination.k8s.io", verbs("get"), "leases")},
		}},
		{account: "barque-node-roles", own: true, rules: []rbacv1.PolicyRule{
			on("", verbs("patch"), "nodes"),
		}},
		{account: "pod-garbage-collector", rules: []rbacv1.PolicyRule{
			on("", verbs("get"), "nodes"),
			on("", verbs("delete"), "pods"),
			on("", verbs("patch"), "pods/status"),
		}},
	}
}

func clusterControllers() []controller {
	return []controller{
		{account: "service-account-controller", rules: []rbacv1.PolicyRule{
			on("", verbs("create"), "serviceaccounts"),
		}},
		{account: "root-ca-cert-publisher", rules: []rbacv1.PolicyRule{
			on("", verbs("create"), "configmaps"),
			named(on("", verbs("update"), "configmaps"), "kube-root-ca.crt"),
		}},
		{account: "namespace-controller", rules: []rbacv1.PolicyRule{
			on("", verbs("update"), "namespaces/status", "namespaces/finalize"),
			// It empties namespaces, of objects of all kinds.
			on("*", verbs("list", "delete", "deletecollection"), "*"),
		}},
		{account: "resourcequota-controller", rules: []rbacv1.PolicyRule{
			// It counts objects of all kinds.
			on("*", verbs("list", "watch"), "*"),
			on("", verbs("update"), "resourcequotas/status"),
		}},
		{account: "generic-garbage-collector", rules: []rbacv1.PolicyRule{
			on("*", verbs("get", "list", "watch", "patch", "delete"), "*"),
			events(),
		}},
		{account: "clusterrole-aggregation-controller", rules: []rbacv1.PolicyRule{
			// It gives roles the rules of others, which can be any. The guard of roles would demand
			// each of them of it.
			on("rbac.authorization.k8s.io", verbs("update", "escalate"), "clusterroles"),
		}},
		{account: "validatingadmissionpolicy-status-controller", rules: []rbacv1.PolicyRule{
			on("admissionregistration.k8s.io", verbs("update"), "validatingadmissionpolicies/status"),
		}},
		{account: "storage-version-migrator-controller", rules: []rbacv1.PolicyRule{
			// It writes each object of a kind again, as it is.
			on("*", verbs("list", "patch"), "*"),
			on("storagemigration.k8s.io", verbs("update"), "storageversionmigrations/status"),
			on("apiextensions.k8s.io", verbs("get"), "customresourcedefinitions"),
			on("apiextensions.k8s.io", verbs("update"), "customresourcedefinitions/status"),
		}},
	}
}

func storageControllers() []controller {
	return []controller{
		{account: "persistent-volume-binder", rules: []rbacv1.PolicyRule{
			on("", verbs("get", "update", "delete"), "persistentvolumes"),
			on("", verbs("update"), "persistentvolumes/status"),
			on("", verbs("get", "update"), "persistentvolumeclaims"),
			on("", verbs("update"), "persistentvolumeclaims/status"),
			events(),
		}},
		{account: "attachdetach-controller", rules: []rbacv1.PolicyRule{
			on("storage.k8s.io", verbs("create", "delete"), "volumeattachments"),
			on("", verbs("patch"), "nodes/status"),
			// Before a volume is detached: its users, from the store.
			on("", verbs("get"), "persistentvolumes", "persistentvolumeclaims"),
			on("", verbs("list"), "pods"),
			events(),
		}},
		{account: "expand-controller", rules: []rbacv1.PolicyRule{events()}},
		{account: "ephemeral-volume-controller", rules: []rbacv1.PolicyRule{
			on("", verbs("create"), "persistentvolumeclaims"),
			blocks("", "pods"),
			events(),
		}},
		{account: "pvc-protection-controller", rules: []rbacv1.PolicyRule{
			on("", verbs("update"), "persistentvolumeclaims"),
			on("", verbs("patch"), "persistentvolumeclaims/status"),
			on("", verbs("list"), "pods"),
		}},
		{account: "pv-protection-controller", rules: []rbacv1.PolicyRule{
			on("", verbs("update"), "persistentvolumes"),
		}},
		{account: "volumeattributesclass-protection-controller", rules: []rbacv1.PolicyRule{
			on("storage.k8s.io", verbs("update"), "volumeattributesclasses"),
		}},
		{account: "barque-local-provisioner", own: true, rules: []rbacv1.PolicyRule{
			on("", verbs("create", "update", "delete"), "persistentvolumes"),
			on("", verbs("update"), "persistentvolumeclaims", "persistentvolumeclaims/status"),
			on("", verbs("get"), "nodes"),
			on("storage.k8s.io", verbs("list", "create"), "storageclasses"),
			on("storage.k8s.io", verbs("create"), "csidrivers"),
			events(),
		}, within: map[string][]rbacv1.PolicyRule{
			metav1.NamespaceSystem: {
				on("storage.k8s.io", verbs("create", "update", "delete"), "csistoragecapacities"),
				on("", verbs("create"), "configmaps"),
				named(on("", verbs("get"), "configmaps"), "barque-default-storage-class"),
			},
		}},
	}
}

func credentialControllers() []controller {
	return []controller{
		{account: "certificate-controller", rules: []rbacv1.PolicyRule{
			on("certificates.k8s.io", verbs("delete"), "certificatesigningrequests"),
			on("certificates.k8s.io", verbs("update"), "certificatesigningrequests/status",
				"certificatesigningrequests/approval"),
			named(on("certificates.k8s.io", verbs("approve"), "signers"),
				certificatesv1.KubeAPIServerClientKubeletSignerName),
			named(on("certificates.k8s.io", verbs("sign"), "signers"), certificatesv1.KubeAPIServerClientSignerName,
				certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName,
				certificatesv1beta1.LegacyUnknownSignerName),
			on("authorization.k8s.io", verbs("create"), "subjectaccessreviews"),
		}},
		{account: "kube-apiserver-serving-clustertrustbundle-publisher", rules: []rbacv1.PolicyRule{
			on("certificates.k8s.io", verbs("create", "update", "delete"), "clustertrustbundles"),
			named(on("certificates.k8s.io", verbs("attest"), "signers"), "kubernetes.io/kube-apiserver-serving"),
		}},
		{account: "podcertificaterequestcleaner", rules: []rbacv1.PolicyRule{
			on("certificates.k8s.io", verbs("delete"), "podcertificaterequests"),
		}},
		{account: "token-cleaner", within: map[string][]rbacv1.PolicyRule{
			metav1.NamespaceSystem: {on("", verbs("delete"), "secrets")},
		}},
		{account: "bootstrap-signer", within: map[string][]rbacv1.PolicyRule{
			metav1.NamespacePublic: {named(on("", verbs("update"), "configmaps"), "cluster-info")},
		}},
	}
}

// tokenRules are the rights of system:kube-controller-manager. It is upstream's user of
// controllers without an account; here the one that fills the tokens of service accounts into
// Secrets.
func tokenRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		on("", verbs("get"), "serviceaccounts"),
		on("", verbs("create"), "serviceaccounts/token"),
		on("", verbs("update", "delete"), "secrets"),
	}
}

// cloudControllers are the controllers of cloud-controller-managers that upstream has roles for.
// Barque runs none of them.
func cloudControllers() []controller {
	return []controller{
		{account: "route-controller", rules: []rbacv1.PolicyRule{
			on("", verbs("list", "watch"), "nodes"),
			on("", verbs("patch"), "nodes/status"),
			on("", verbs("create", "patch", "update"), "events"),
		}},
		{account: "service-controller", rules: []rbacv1.PolicyRule{
			on("", readVerbs, "services"),
			on("", verbs("patch", "update"), "services/status"),
			on("", verbs("list", "watch"), "nodes"),
			on("", verbs("create", "patch", "update"), "events"),
		}},
	}
}

func controllerClusterRoles() (roles []rbacv1.ClusterRole) {
	for _, c := range append(controllers(), cloudControllers()...) {
		if len(c.rules) > 0 {
			roles = append(roles, clusterRole(c.role(), c.rules...))
		}
	}
	return roles
}

func controllerClusterRoleBindings() (bindings []rbacv1.ClusterRoleBinding) {
	for _, c := range append(controllers(), cloudControllers()...) {
		if len(c.rules) > 0 {
			bindings = append(bindings, rbacv1.ClusterRoleBinding{
				ObjectMeta: defaultMeta("", c.role()),
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: c.role()},
				Subjects:   []rbacv1.Subject{c.subject()},
			})
		}
	}
	return bindings
}

func controllerRoles() (roles []rbacv1.Role) {
	for _, c := range controllers() {
		for namespace, rules := range c.within {
			roles = append(roles, rbacv1.Role{ObjectMeta: defaultMeta(namespace, c.role()), Rules: rules})
		}
	}
	return roles
}

func controllerRoleBindings() (bindings []rbacv1.RoleBinding) {
	for _, c := range controllers() {
		for namespace := range c.within {
			bindings = append(bindings, rbacv1.RoleBinding{
				ObjectMeta: defaultMeta(namespace, c.role()),
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: c.role()},
				Subjects:   []rbacv1.Subject{c.subject()},
			})
		}
	}
	return bindings
}

// addonControllers apply what users hand to the cluster as files and charts. These may have objects
// of any kind, so two of them have all rights.
func addonControllers() []controller {
	all := []rbacv1.PolicyRule{
		on("*", verbs("*"), "*"),
		{Verbs: verbs("*"), NonResourceURLs: []string{"*"}},
	}
	return []controller{
		{account: "barque-manifests", own: true, rules: all},
		{account: "barque-helm-charts", own: true, rules: all},
		// Each server describes its files, and leads or not.
		{account: "barque-manifest-files", own: true, rules: []rbacv1.PolicyRule{
			on("barque.io", verbs("create", "patch"), "manifests"),
		}, within: map[string][]rbacv1.PolicyRule{
			metav1.NamespaceSystem: {on("", verbs("create"), "secrets")},
		}},
	}
}
