package apiserver

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
)

// An idle cluster writes nothing, even if its servers have different findings about a
// faulty extension.
func TestServersDoNotArgueAboutAnExtension(t *testing.T) {
	c := startCluster(t)
	if err := c.ensure(t.Context(), c.client); err != nil {
		t.Fatal(err)
	}
	users := aggregatorclient.NewForConfigOrDie(c.ca.client(t, c.host, admin())).ApiregistrationV1().APIServices()
	port := int32(443)
	made := must(users.Create(t.Context(), &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.ill.example.com"},
		Spec: apiregistrationv1.APIServiceSpec{Group: "ill.example.com", Version: "v1", GroupPriorityMinimum: 2000,
			VersionPriority: 15, InsecureSkipTLSVerify: true,
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "nobody", Port: &port}},
	}, metav1.CreateOptions{}))(t)
	server := aggregatorclient.NewForConfigOrDie(c.LoopbackConfig()).ApiregistrationV1().APIServices()
	find := func(reason, message string) *apiregistrationv1.APIService {
		t.Helper()
		var found *apiregistrationv1.APIService
		await(t, "the server tells what it found", func(ctx context.Context) (err error, ok bool) {
			if found, err = server.Get(ctx, made.Name, metav1.GetOptions{}); err != nil {
				return err, false
			}
			found.Status.Conditions = []apiregistrationv1.APIServiceCondition{{
				Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionFalse, Reason: reason,
				Message: message, LastTransitionTime: metav1.Now(),
			}}
			found, err = server.UpdateStatus(ctx, found, metav1.UpdateOptions{})
			return err, err == nil
		})
		return found
	}
	if found := find("FailedDiscoveryCheck", "timed out"); found.ResourceVersion != made.ResourceVersion ||
		len(found.Status.Conditions) > 0 {
		t.Errorf("a follower wrote %v", found.Status)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.LeaderRoutine(ctx, c.client) }()
	var first *apiregistrationv1.APIService
	await(t, "the leader writes", func(context.Context) (error, bool) {
		first = find("ServiceNotFound", "not there")
		return nil, len(first.Status.Conditions) == 1
	})
	if again := find("ServiceNotFound", "still not there"); again.ResourceVersion != first.ResourceVersion {
		t.Errorf("other words were written: %v", again.Status)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if late := find("Passed", "all is well"); late.ResourceVersion != first.ResourceVersion {
		t.Errorf("who led before wrote %v", late.Status)
	}
}
