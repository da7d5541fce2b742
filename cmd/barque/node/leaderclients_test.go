package node

import (
	"slices"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
)

// TestGroupsOfParts: whoever has the rights of system:masters in the process is seen, but for the
// API server itself.
func TestGroupsOfParts(t *testing.T) {
	of := func(name string, groups ...string) user.Info { return &user.DefaultInfo{Name: name, Groups: groups} }
	good := []user.Info{of("system:apiserver", "system:masters"), of("system:node:s1", "system:nodes"),
		of("system:serviceaccount:kube-system:job-controller", "system:serviceaccounts"),
		of("system:kube-scheduler", "system:authenticated")}
	if got := groupsOfParts(good); !slices.Equal(got, []string{"system:authenticated", "system:serviceaccounts"}) {
		t.Errorf("%v", got)
	}
	if got := groupsOfParts(
		append(good, of("system:serviceaccount:kube-system:job-controller", "system:masters"))); !slices.Contains(got,
		"system:masters") {
		t.Errorf("%v", got)
	}
}
