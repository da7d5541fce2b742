// Package rbac decides by Roles, ClusterRoles and their bindings what a user may do, keeps writers
// of roles from granting more than they have, and lays down the default roles.
//
// It reads the rbac.authorization.k8s.io objects from listers, so a decision costs no request and
// is as fresh as the informers behind them. It never denies: where no rule allows it has no opinion
// and the next authorizer is asked.
//
// The default roles and bindings follow the documented ones of Kubernetes
// (https://kubernetes.io/docs/reference/access-authn-authz/rbac/#default-roles-and-role-bindings);
// they are reconciled by the leader, and objects annotated
// rbac.authorization.kubernetes.io/autoupdate=false are left alone.
package rbac
