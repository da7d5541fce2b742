package controllers

import (
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// user is the name by which the API knows the requests of the controller.
func (e entry) user() string {
	if e.account == "" {
		return user.KubeControllerManager
	}
	return serviceaccount.MakeUsername(metav1.NamespaceSystem, e.account)
}

// Users returns the user of each controller, by the controller's name. Some controllers share one,
// as upstream's do.
func Users() map[string]string {
	users := map[string]string{}
	for e := range all() {
		users[e.name] = e.user()
	}
	return users
}
