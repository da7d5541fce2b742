package apiservices

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

func TestFindingsThatAreWritten(t *testing.T) {
	type conditions = []apiregistration.APIServiceCondition
	finding := func(status apiregistration.ConditionStatus, reason, message string) conditions {
		return conditions{{Type: apiregistration.Available, Status: status, Reason: reason, Message: message}}
	}
	failed := finding(apiregistration.ConditionFalse, "FailedDiscoveryCheck", "from port 1")
	for _, c := range []struct {
		name    string
		leads   bool
		local   bool
		user    string
		was, is conditions
		written bool
	}{
		{"the first finding", true, false, user.APIServerUser, nil, failed, true},
		{"the first finding of a follower", false, false, user.APIServerUser, nil, failed, false},
		{"other words", true, false, user.APIServerUser, failed,
			finding(apiregistration.ConditionFalse, "FailedDiscoveryCheck", "from port 2"), false},
		{"another reason", true, false, user.APIServerUser, failed,
			finding(apiregistration.ConditionFalse, "MissingEndpoints", "from port 1"), true},
		{"another finding", true, false, user.APIServerUser, failed,
			finding(apiregistration.ConditionTrue, "Passed", "all checks passed"), true},
		{"another finding of a follower", false, false, user.APIServerUser, failed,
			finding(apiregistration.ConditionTrue, "Passed", "all checks passed"), false},
		{"of its own kinds", false, true, user.APIServerUser, nil, finding(apiregistration.ConditionTrue, "Local", ""),
			true},
		{"by a user", false, false, "ann", failed,
			finding(apiregistration.ConditionFalse, "FailedDiscoveryCheck", "mine"), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			service := func(list conditions) *apiregistration.APIService {
				s := &apiregistration.APIService{Status: apiregistration.APIServiceStatus{Conditions: list}}
				if !c.local {
					s.Spec.Service = &apiregistration.ServiceReference{Namespace: "n", Name: "s"}
				}
				return s
			}
			is := service(c.is)
			a := admission.NewAttributesRecord(is, service(c.was), schema.GroupVersionKind{}, "", "v1.a",
				apiregistrationv1.SchemeGroupVersion.WithResource("apiservices"), "status", admission.Update, nil,
				false, &user.DefaultInfo{Name: c.user})
			if err := NewAvailability(func() bool { return c.leads }).Admit(t.Context(), a, nil); err != nil {
				t.Fatal(err)
			}
			want := c.was
			if c.written {
				want = c.is
			}
			if got := is.Status.Conditions; len(got) != len(want) || len(want) > 0 && got[0] != want[0] {
				t.Errorf("%v, want %v", got, want)
			}
		})
	}
}
