package rbac

import rbacv1 "k8s.io/api/rbac/v1"

// userRoles are the roles meant for people: admin, edit and view, each the sum of the roles
// labelled for it. Every resource is named once, at the least role that reaches it.
func userRoles() []rbacv1.ClusterRole {
	return []rbacv1.ClusterRole{
		aggregated("admin", toAdmin),
		labeled(aggregated("edit", toEdit), toAdmin),
		labeled(aggregated("view", toView), toEdit),
		labeled(clusterRole("system:aggregate-to-admin", adminRules()...), toAdmin),
		labeled(clusterRole("system:aggregate-to-edit", editRules()...), toEdit),
		labeled(clusterRole("system:aggregate-to-view", viewRules()...), toView),
		// The name and the labels are those of metrics-server's manifest, which may be applied over
		// it.
		labeled(clusterRole("system:aggregated-metrics-reader",
			on("metrics.k8s.io", verbs("get", "list", "watch"), "pods", "nodes")), toView, toEdit, toAdmin),
	}
}

func adminRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		on("authorization.k8s.io", verbs("create"), "localsubjectaccessreviews"),
		on("rbac.authorization.k8s.io", append(verbs("get", "list", "watch"), writeVerbs...), "roles", "rolebindings"),
	}
}

func editRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		on("", readVerbs, "pods/attach", "pods/proxy", "pods/exec", "pods/portforward", "secrets", "services/proxy"),
		on("", verbs("impersonate"), "serviceaccounts"),
		on("", writeVerbs, "pods", "pods/attach", "pods/exec", "pods/portforward", "pods/proxy"),
		on("", verbs("patch", "update"), "pods/ephemeralcontainers", "pods/resize"),
		on("", verbs("create"), "pods/eviction", "serviceaccounts/token"),
		on("", writeVerbs, "configmaps", "events", "persistentvolumeclaims", "replicationcontrollers",
			"replicationcontrollers/scale", "secrets", "serviceaccounts", "services", "services/proxy"),
		on("apps", writeVerbs, "daemonsets", "deployments", "deployments/rollback", "deployments/scale",
			"replicasets", "replicasets/scale", "statefulsets", "statefulsets/scale"),
		on("autoscaling", writeVerbs, "horizontalpodautoscalers"),
		on("batch", writeVerbs, "cronjobs", "jobs"),
		on("policy", writeVerbs, "poddisruptionbudgets"),
		on("networking.k8s.io", writeVerbs, "ingresses", "networkpolicies"),
		on("resource.k8s.io", writeVerbs, "resourceclaims", "resourceclaimtemplates"),
		on("coordination.k8s.io", append(verbs("get", "list", "watch"), writeVerbs...), "leases"),
	}
}

// viewRules leave out Secrets, and roles and bindings: reading them would show how to become more.
func viewRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		on("", readVerbs, "configmaps", "endpoints", "persistentvolumeclaims", "persistentvolumeclaims/status",
			"pods", "replicationcontrollers", "replicationcontrollers/scale", "serviceaccounts", "services",
			"services/status"),
		on("", readVerbs, "bindings", "events", "limitranges", "namespaces/status", "pods/log", "pods/status",
			"replicationcontrollers/status", "resourcequotas", "resourcequotas/status"),
		on("", readVerbs, "namespaces"),
		on("discovery.k8s.io", readVerbs, "endpointslices"),
		on("apps", readVerbs, "controllerrevisions", "daemonsets", "daemonsets/status", "deployments",
			"deployments/scale",
			"deployments/status", "replicasets", "replicasets/scale", "replicasets/status", "statefulsets",
			"statefulsets/scale", "statefulsets/status"),
		on("autoscaling", readVerbs, "horizontalpodautoscalers", "horizontalpodautoscalers/status"),
		on("batch", readVerbs, "cronjobs", "cronjobs/status", "jobs", "jobs/status"),
		on("policy", readVerbs, "poddisruptionbudgets", "poddisruptionbudgets/status"),
		on("networking.k8s.io", readVerbs, "ingresses", "ingresses/status", "networkpolicies"),
		on("resource.k8s.io", readVerbs, "resourceclaims", "resourceclaims/status", "resourceclaimtemplates"),
	}
}
