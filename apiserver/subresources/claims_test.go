package subresources

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/ptr"
)

// claimsFor returns checks that allow the listed rights, each "verb subresource namespace/name".
func claimsFor(allowed ...string) *Claims {
	return &Claims{
		Authorizer: authorizer.AuthorizerFunc(
			func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
				if slices.Contains(allowed, a.GetVerb()+" "+a.GetSubresource()+" "+a.GetNamespace()+"/"+a.GetName()) &&
					a.GetResource() == "resourceclaims" {
					return authorizer.DecisionAllow, "", nil
				}
				return authorizer.DecisionNoOpinion, "not listed", nil
			}),
		Namespace: func(_ context.Context, name string) (*corev1.Namespace, error) {
			switch name {
			case "open":
				return &corev1.Namespace{
					ObjectMeta: metav1.ObjectMeta{
						Labels: map[string]string{resourcev1.DRAAdminNamespaceLabelKey: "true"}}}, nil
			case "closed":
				return &corev1.Namespace{}, nil
			}
			return nil, errors.New("no answer")
		},
	}
}

// writing is the context of an update of the status of claim c by a user.
func writing(t *testing.T, who user.Info) context.Context {
	return request.WithRequestInfo(request.WithUser(t.Context(), who), &request.RequestInfo{
		IsResourceRequest: true, Verb: "update", APIGroup: "resource.k8s.io", APIVersion: "v1",
		Resource: "resourceclaims", Subresource: "status", Namespace: "closed", Name: "c",
	})
}

func wantErrors(t *testing.T, what string, errs field.ErrorList, want ...string) {
	t.Helper()
	got := []string{}
	for _, e := range errs {
		got = append(got, string(e.Type)+" "+e.Field)
	}
	if diff := cmp.Diff(append([]string{}, want...), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestMayRequest(t *testing.T) {
	const at = "spec.devices.requests[1].adminAccess"
	asked := []resourcev1.DeviceRequest{{FirstAvailable: []resourcev1.DeviceSubRequest{{}}},
		{Exactly: &resourcev1.ExactDeviceRequest{AdminAccess: ptr.To(true)}}}
	c := claimsFor()
	wantErrors(t, "open", c.MayRequest(t.Context(), "open", asked))
	wantErrors(t, "closed", c.MayRequest(t.Context(), "closed", asked), string(field.ErrorTypeForbidden)+" "+at)
	wantErrors(t, "unknown", c.MayRequest(t.Context(), "unknown", asked), string(field.ErrorTypeInternal)+" "+at)
	asked[1].Exactly.AdminAccess = ptr.To(false)
	wantErrors(t, "no administrative access", c.MayRequest(t.Context(), "unknown", asked))
}

func TestMayWriteStatus(t *testing.T) {
	const (
		bind         = "update binding /"
		anywhere     = "arbitrary-node:update driver closed/d"
		here         = "associated-node:update driver closed/d"
		atAllocation = string(field.ErrorTypeForbidden) + " status.allocation"
		atDevices    = string(field.ErrorTypeForbidden) + " status.devices"
	)
	pending := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "closed", Name: "c"}}
	allocated := pending.DeepCopy()
	allocated.Status.Allocation = &resourcev1.AllocationResult{
		Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{Driver: "d"}}},
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{
				{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n"}}}}}},
	}
	reserved := allocated.DeepCopy()
	reserved.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{UID: "u"}}
	reported := allocated.DeepCopy()
	reported.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: "d", Pool: "p", Device: "x"}}
	admin := allocated.DeepCopy()
	admin.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true)
	anyNode := reported.DeepCopy()
	anyNode.Status.Allocation.NodeSelector = nil
	anyNodeBefore := anyNode.DeepCopy()
	anyNodeBefore.Status.Devices = nil

	ann := &user.DefaultInfo{Name: "ann"}
	driver := func(node string) user.Info {
		return &user.DefaultInfo{Name: "system:serviceaccount:ns:driver",
			Extra: map[string][]string{"authentication.kubernetes.io/node-name": {node}}}
	}
	for name, c := range map[string]struct {
		who       user.Info
		claim, of *resourcev1.ResourceClaim
		allowed   []string
		want      []string
	}{
		"nothing changes": {ann, reported, reported, nil, nil},
		"allocates":       {ann, allocated, pending, []string{bind}, nil},
		"allocates without the right": {ann, allocated, pending, []string{anywhere, here},
			[]string{atAllocation}},
		"deallocates without the right":     {ann, pending, allocated, nil, []string{atAllocation}},
		"deallocates with reports":          {ann, pending, reported, []string{bind}, nil},
		"reserves":                          {ann, reserved, allocated, []string{bind}, nil},
		"reserves without the right":        {ann, reserved, allocated, nil, []string{atAllocation}},
		"reports":                           {ann, reported, allocated, []string{anywhere}, nil},
		"reports as if it were on the node": {ann, reported, allocated, []string{here}, []string{atDevices}},
		"takes a report back":               {ann, allocated, reported, nil, []string{atDevices}},
		"reports from the node":             {driver("n"), reported, allocated, []string{here}, nil},
		"reports from another node":         {driver("m"), reported, allocated, []string{here}, []string{atDevices}},
		"reports from anywhere":             {driver("m"), reported, allocated, []string{anywhere}, nil},
		"reports from the node, for any node": {driver("n"), anyNode, anyNodeBefore, []string{here},
			[]string{atDevices}},
		"allocates for an administrator": {ann, admin, pending, []string{bind},
			[]string{string(field.ErrorTypeForbidden) + " status.allocation.devices.results[0].adminAccess"}},
		"has it for an administrator": {ann, admin, admin, nil, nil},
	} {
		wantErrors(t, name, claimsFor(c.allowed...).MayWriteStatus(writing(t, c.who), c.claim, c.of), c.want...)
	}
	wantErrors(t, "nobody", claimsFor(bind).MayWriteStatus(t.Context(), allocated, pending),
		string(field.ErrorTypeInternal)+" status")
}
