// Package rbac decides by Roles, ClusterRoles and their bindings on a user's requests. It keeps
// writers of roles from granting more than they have, and creates the default roles.
//
// It reads the rbac.authorization.k8s.io objects from listers, so a decision costs no request and
// is as fresh as the informers behind them. It never denies: without a rule that allows, it has no
// opinion and the next authorizer decides.
//
// The default roles and bindings follow the documented ones of Kubernetes
// (https://kubernetes.io/docs/reference/access-authn-authz/rbac/#default-roles-and-role-bindings).
// The leader reconciles them, and leaves objects annotated
// rbac.authorization.kubernetes.io/autoupdate=false alone.
package rbac
