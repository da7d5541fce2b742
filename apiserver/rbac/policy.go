package rbac

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/barque/barque/apiserver/gatewayauth"
	"github.com/barque/barque/internal/clusterusers"
	"github.com/barque/barque/internal/kubeletapi"
	"github.com/barque/barque/internal/pagelogin"
)

// Verbs in the combinations that the default roles use.
var (
	readVerbs  = []string{"get", "list", "watch"}
	writeVerbs = []string{"create", "delete", "deletecollection", "patch", "update"}
)

const (
	bootstrapping = "kubernetes.io/bootstrapping"
	rbacDefaults  = "rbac-defaults"
	autoUpdate    = rbacv1.AutoUpdateAnnotationKey

	toAdmin = "rbac.authorization.k8s.io/aggregate-to-admin"
	toEdit  = "rbac.authorization.k8s.io/aggregate-to-edit"
	toView  = "rbac.authorization.k8s.io/aggregate-to-view"
)

// on is a rule over resources of one API group.
func on(group string, verbs []string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Verbs: verbs, Resources: resources}
}

func urls(paths ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: paths}
}

func verbs(v ...string) []string { return v }

func clusterRole(name string, rules ...rbacv1.PolicyRule) rbacv1.ClusterRole {
	return rbacv1.ClusterRole{ObjectMeta: defaultMeta("", name), Rules: rules}
}

// aggregated is a role with the rules of all cluster roles that carry the label.
func aggregated(name, label string) rbacv1.ClusterRole {
	r := clusterRole(name)
	r.AggregationRule = &rbacv1.AggregationRule{
		ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{label: "true"}}}}
	return r
}

func labeled(r rbacv1.ClusterRole, labels ...string) rbacv1.ClusterRole {
	for _, l := range labels {
		r.Labels[l] = "true"
	}
	return r
}

func defaultMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace:   namespace,
		Name:        name,
		Labels:      map[string]string{bootstrapping: rbacDefaults},
		Annotations: map[string]string{autoUpdate: "true"},
	}
}

// DefaultClusterRoles returns the cluster roles that every cluster has.
func DefaultClusterRoles() []rbacv1.ClusterRole {
	all := []string{"*"}
	roles := []rbacv1.ClusterRole{
		clusterRole("cluster-admin",
			rbacv1.PolicyRule{APIGroups: all, Verbs: all, Resources: all},
			rbacv1.PolicyRule{Verbs: all, NonResourceURLs: all}),
		clusterRole("system:discovery",
			urls("/livez", "/readyz", "/healthz", "/version", "/version/", "/openapi", "/openapi/*", "/api", "/api/*",
				"/apis", "/apis/*")),
		clusterRole("system:public-info-viewer", urls("/livez", "/readyz", "/healthz", "/version", "/version/")),
		clusterRole("system:monitoring",
			urls("/metrics", "/metrics/slis", "/livez", "/readyz", "/healthz", "/livez/*", "/readyz/*", "/healthz/*")),
		clusterRole("system:basic-user",
			on("authorization.k8s.io", verbs("create"), "selfsubjectaccessreviews", "selfsubjectrulesreviews"),
			on("authentication.k8s.io", verbs("create"), "selfsubjectreviews")),
		clusterRole("system:auth-delegator",
			on("authentication.k8s.io", verbs("create"), "tokenreviews"),
			on("authorization.k8s.io", verbs("create"), "subjectaccessreviews")),
		clusterRole("system:service-account-issuer-discovery",
			urls("/.well-known/openid-configuration", "/.well-known/openid-configuration/", "/openid/v1/jwks",
				"/openid/v1/jwks/")),
		clusterRole("system:heapster",
			on("", readVerbs, "events", "pods", "nodes", "namespaces"),
			on("apps", readVerbs, "deployments")),
		clusterRole("system:kubelet-api-admin",
			on("", readVerbs, "nodes"),
			on("", verbs("proxy"), "nodes"),
			on("", verbs("*"), "nodes/proxy", "nodes/metrics", "nodes/stats", "nodes/log", "nodes/spec",
				"nodes/checkpoint", "nodes/configz", "nodes/healthz", "nodes/pods")),
		clusterRole(clusterusers.ServerClient,
			urls("/barque/v1/audit", "/barque/v1/certificates", "/barque/v1/diagnosis", "/barque/v1/encryption",
				"/barque/v1/hardening", "/barque/v1/snapshots", pagelogin.HistoryPath, "/barque/v1/upgrade/files",
				"/barque/v1/upgrade/node"),
			rbacv1.PolicyRule{Verbs: verbs("post"),
				NonResourceURLs: []string{"/barque/v1/certificates", "/barque/v1/upgrade/node"}}),
		clusterRole("barque:status-reader",
			urls("/barque/v1/status", "/barque/v1/gossip", pagelogin.HistoryPath)),
		clusterRole("system:node-bootstrapper",
			on("certificates.k8s.io", verbs("create", "get", "list", "watch"), "certificatesigningrequests")),
		clusterRole("system:certificates.k8s.io:certificatesigningrequests:nodeclient",
			on("certificates.k8s.io", verbs("create"), "certificatesigningrequests/nodeclient")),
		clusterRole("system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
			on("certificates.k8s.io", verbs("create"), "certificatesigningrequests/selfnodeclient")),
		clusterRole("system:certificates.k8s.io:legacy-unknown-approver", approves("kubernetes.io/legacy-unknown")),
		clusterRole("system:certificates.k8s.io:kubelet-serving-approver", approves("kubernetes.io/kubelet-serving")),
		clusterRole("system:certificates.k8s.io:kube-apiserver-client-approver",
			approves("kubernetes.io/kube-apiserver-client")),
		clusterRole("system:certificates.k8s.io:kube-apiserver-client-kubelet-approver",
			approves("kubernetes.io/kube-apiserver-client-kubelet")),
		clusterRole("system:cluster-trust-bundle-discovery",
			on("certificates.k8s.io", readVerbs, "clustertrustbundles")),
		clusterRole("system:persistent-volume-provisioner",
			on("", verbs("get", "list", "watch", "create", "delete"), "persistentvolumes"),
			on("", verbs("get", "list", "watch", "update"), "persistentvolumeclaims"),
			on("storage.k8s.io", readVerbs, "storageclasses"),
			on("", verbs("watch"), "events"),
			on("", verbs("create", "update", "patch"), "events")),
		clusterRole("system:node", NodeRules()...),
		clusterRole("system:node-proxier", proxierRules()...),
		clusterRole("system:kube-scheduler", schedulerRules()...),
		clusterRole("system:volume-scheduler", volumeSchedulerRules()...),
		clusterRole("system:kube-controller-manager", tokenRules()...),
		clusterRole("barque:gateway", gatewayRules()...),
		clusterRole("system:kube-dns",
			on("", verbs("list", "watch"), "endpoints", "services", "pods", "namespaces"),
			on("discovery.k8s.io", verbs("list", "watch"), "endpointslices")),
	}
	return slices.Concat(roles, userRoles(), controllerClusterRoles())
}

// volumeSchedulerRules are the rules by which the scheduler binds claims to volumes.
func volumeSchedulerRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		on("", verbs("get", "list", "watch", "patch", "update"), "persistentvolumes", "persistentvolumeclaims"),
		on("storage.k8s.io", readVerbs, "storageclasses"),
	}
}

// approves allows to approve requests for one signer.
func approves(signer string) rbacv1.PolicyRule {
	return named(on("certificates.k8s.io", verbs("approve"), "signers"), signer)
}

// NodeRules are the rules of a kubelet, before the node authorizer narrows them to its own node.
func NodeRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		on("authentication.k8s.io", verbs("create"), "tokenreviews"),
		on("authorization.k8s.io", verbs("create"), "subjectaccessreviews", "localsubjectaccessreviews"),
		on("", readVerbs, "services"),
		on("discovery.k8s.io", readVerbs, "endpointslices"),
		on("", verbs("create", "get", "list", "watch"), "nodes"),
		on("", verbs("patch", "update"), "nodes/status"),
		on("", verbs("patch", "update"), "nodes"),
		on("", verbs("create", "patch", "update"), "events"),
		on("events.k8s.io", verbs("create", "patch", "update"), "events"),
		on("", readVerbs, "pods"),
		on("", verbs("create", "delete"), "pods"),
		on("", verbs("patch", "update"), "pods/status"),
		on("", verbs("create"), "pods/eviction"),
		on("", readVerbs, "configmaps", "secrets"),
		on("", verbs("get"), "persistentvolumeclaims", "persistentvolumes", "endpoints"),
		// The node's report about volumes that it expands. NodeRestriction bounds it.
		on("", verbs("get", "update", "patch"), "persistentvolumeclaims/status"),
		// Of the local volumes that are on it. The node authorizer and NodeRestriction see to that.
		on("", verbs("list", "watch", "update"), "persistentvolumes"),
		on("certificates.k8s.io", verbs("create", "get", "list", "watch"), "certificatesigningrequests"),
		on("coordination.k8s.io", verbs("get", "create", "update", "patch", "delete"), "leases"),
		on("storage.k8s.io", verbs("get"), "volumeattachments"),
		on("storage.k8s.io", readVerbs, "csidrivers"),
		on("storage.k8s.io", verbs("get", "create", "update", "patch", "delete"), "csinodes"),
		on("", verbs("create"), "serviceaccounts/token"),
		on("", verbs("get"), "serviceaccounts"),
		on("node.k8s.io", readVerbs, "runtimeclasses"),
		on("networking.k8s.io", readVerbs, "networkpolicies"),
		on("edge.barque.io", verbs("list", "watch"), "addresspools", "bgppeers"),
		on("", verbs("list", "watch"), "namespaces"),
		on("resource.k8s.io", verbs("get"), "resourceclaims"),
		on("resource.k8s.io", verbs("deletecollection"), "resourceslices"),
		on("certificates.k8s.io", readVerbs, "clustertrustbundles"),
		on("certificates.k8s.io", verbs("get", "list", "watch", "create"), "podcertificaterequests"),
	}
}

// gatewayRules are what the gateway of each node reads. Its Secrets and ConfigMaps are
// apiserver/gatewayauth's.
func gatewayRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		on("networking.k8s.io", readVerbs, "ingresses", "ingressclasses"),
		on("gateway.networking.k8s.io", readVerbs, "gatewayclasses", "gateways", "listenersets", "httproutes",
			"grpcroutes", "tlsroutes",
			"backendtlspolicies", "referencegrants"),
	}
}

func proxierRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		on("", verbs("list", "watch"), "services", "endpoints"),
		on("", readVerbs, "nodes"),
		on("discovery.k8s.io", verbs("list", "watch"), "endpointslices"),
		on("", verbs("create", "patch", "update"), "events"),
		on("events.k8s.io", verbs("create", "patch", "update"), "events"),
	}
}

func schedulerRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		on("", verbs("create", "patch", "update"), "events"),
		on("events.k8s.io", verbs("create", "patch", "update"), "events"),
		on("coordination.k8s.io", verbs("create", "get", "list", "update", "watch"), "leases"),
		on("", readVerbs, "nodes", "namespaces"),
		on("", verbs("get", "list", "watch", "delete"), "pods"),
		on("", verbs("create"), "pods/binding", "bindings"),
		on("", verbs("patch", "update"), "pods/status"),
		on("", readVerbs, "services", "replicationcontrollers", "persistentvolumes", "persistentvolumeclaims"),
		on("apps", readVerbs, "replicasets", "statefulsets"),
		on("policy", readVerbs, "poddisruptionbudgets"),
		on("storage.k8s.io", readVerbs, "csinodes", "csidrivers", "csistoragecapacities", "storageclasses",
			"volumeattachments"),
		on("resource.k8s.io", readVerbs, "deviceclasses", "devicetaintrules", "resourceslices"),
		on("", verbs("update"), "pods/finalizers"),
		on("resource.k8s.io", verbs("get", "list", "watch", "create", "delete", "patch", "update"), "resourceclaims"),
		on("resource.k8s.io", verbs("get", "list", "watch", "patch", "update"), "resourceclaims/status"),
		on("resource.k8s.io", verbs("patch", "update"), "resourceclaims/binding"),
		on("authentication.k8s.io", verbs("create"), "tokenreviews"),
		on("authorization.k8s.io", verbs("create"), "subjectaccessreviews"),
	}
}

// DefaultClusterRoleBindings returns the cluster role bindings that every cluster has.
func DefaultClusterRoleBindings() []rbacv1.ClusterRoleBinding {
	group := func(n string) rbacv1.Subject {
		return rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: n}
	}
	usr := func(n string) rbacv1.Subject {
		return rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: n}
	}
	bind := func(role string, subjects ...rbacv1.Subject) rbacv1.ClusterRoleBinding {
		return rbacv1.ClusterRoleBinding{
			ObjectMeta: defaultMeta("", role),
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   subjects,
		}
	}
	return append([]rbacv1.ClusterRoleBinding{
		bind("cluster-admin", group(user.SystemPrivilegedGroup)),
		bind("system:monitoring", group(user.MonitoringGroup)),
		bind("system:discovery", group(user.AllAuthenticated)),
		bind("system:basic-user", group(user.AllAuthenticated)),
		bind("system:public-info-viewer", group(user.AllAuthenticated), group(user.AllUnauthenticated)),
		bind("system:service-account-issuer-discovery", group("system:serviceaccounts")),
		bind("system:cluster-trust-bundle-discovery", group("system:serviceaccounts")),
		bind("system:node-proxier", usr("system:kube-proxy")),
		bind("system:kube-controller-manager", usr(user.KubeControllerManager)),
		bind("system:kube-scheduler", usr(user.KubeScheduler)),
		bind("system:volume-scheduler", usr(user.KubeScheduler)),
		bind("system:kube-dns",
			rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: "kube-dns", Namespace: metav1.NamespaceSystem}),
		// The node authorizer decides for kubelets; the binding only has to exist.
		bind("system:node"),
		bind("barque:gateway",
			rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: gatewayauth.Account.Name,
				Namespace: gatewayauth.Account.Namespace}),
		kubeletClientBinding(),
		serverClientBinding(),
		adminsBinding(),
	}, controllerClusterRoleBindings()...)
}

// adminsBinding gives administrators with a certificate of their own their rights.
func adminsBinding() rbacv1.ClusterRoleBinding {
	return rbacv1.ClusterRoleBinding{
		ObjectMeta: defaultMeta("", clusterusers.AdminGroup),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{
			{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: clusterusers.AdminGroup}},
	}
}

// kubeletClientBinding lets the API server call kubelets that review its rights. Its name is its
// own: the role is upstream's, and users bind it themselves under the role's name.
func kubeletClientBinding() rbacv1.ClusterRoleBinding {
	return rbacv1.ClusterRoleBinding{
		ObjectMeta: defaultMeta("", "barque:kubelet-client"),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:kubelet-api-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: kubeletapi.ClientUser}},
	}
}

// serverClientBinding lets servers request each other's data for operators.
func serverClientBinding() rbacv1.ClusterRoleBinding {
	return rbacv1.ClusterRoleBinding{
		ObjectMeta: defaultMeta("", clusterusers.ServerClient),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: clusterusers.ServerClient},
		Subjects: []rbacv1.Subject{
			{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: clusterusers.ServerClients}},
	}
}

// DefaultRoles returns the namespaced roles that every cluster has.
func DefaultRoles() []rbacv1.Role {
	return append(controllerRoles(), rbacv1.Role{
		ObjectMeta: defaultMeta(metav1.NamespaceSystem, "extension-apiserver-authentication-reader"),
		Rules:      []rbacv1.PolicyRule{named(on("", readVerbs, "configmaps"), "extension-apiserver-authentication")},
	})
}

// DefaultRoleBindings returns the namespaced role bindings that every cluster has.
func DefaultRoleBindings() []rbacv1.RoleBinding {
	return append(controllerRoleBindings(), rbacv1.RoleBinding{
		ObjectMeta: defaultMeta(metav1.NamespaceSystem, "system::extension-apiserver-authentication-reader"),
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role",
			Name: "extension-apiserver-authentication-reader"},
		Subjects: []rbacv1.Subject{
			{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user.KubeControllerManager},
			{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user.KubeScheduler},
		},
	})
}
