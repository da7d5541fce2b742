package fairness

import (
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/internal/clusterusers"
)

// serversSchema exempts requests between servers, beside the API's objects. They serve operators
// and status, which have to work while clients take all places. A leader of a version before 30
// November 2026 does not know it, and removes it as a former default. The next leader of this
// version creates it again when it begins to lead, or in its next round a minute later.
var serversSchema = &flowcontrolv1.FlowSchema{
	ObjectMeta: metav1.ObjectMeta{Name: "barque-servers",
		Annotations: map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: "true"}},
	Spec: flowcontrolv1.FlowSchemaSpec{
		PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{
			Name: flowcontrolv1.PriorityLevelConfigurationNameExempt},
		MatchingPrecedence: 3, // below exempt and probes
		Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
			Subjects: []flowcontrolv1.Subject{
				{Kind: flowcontrolv1.SubjectKindGroup,
					Group: &flowcontrolv1.GroupSubject{Name: clusterusers.ServerClients}}},
			NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{
				{Verbs: []string{flowcontrolv1.VerbAll}, NonResourceURLs: []string{"/barque/v1/*"}}},
		}},
	},
}
