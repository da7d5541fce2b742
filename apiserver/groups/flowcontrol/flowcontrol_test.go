package flowcontrol

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/grouptest"
	"github.com/barque/barque/apiserver/resource"
)

const meta = "metadata: {name: x, resourceVersion: '1'}\n"

func TestValidateFlowSchema(t *testing.T) {
	const (
		level    = "priorityLevelConfiguration: {name: l}, "
		subjects = "subjects: [{kind: User, user: {name: '*'}}]"
		rules    = "rules: [{" + subjects + ", "
		urls     = rules + "nonResourceRules: [{verbs: [get], nonResourceURLs: "
		resource = rules + "resourceRules: [{verbs: ['*'], apiGroups: ['*'], resources: ['*'], namespaces: ['*']"
		at       = "spec.rules[0]."
	)
	for name, c := range map[string]struct {
		spec string
		want []string
	}{
		"good":     {level + resource + "}]}], distinguisherMethod: {type: ByUser}, matchingPrecedence: 10000", nil},
		"no rules": {level, nil},
		"subjects": {
			level +
				"rules: [{subjects: [{kind: Group, group: {name: g}}, {kind: ServiceAccount, serviceAccount: {name: '*', namespace: ns}}], nonResourceRules: [{verbs: [get, list], nonResourceURLs: [/, /a/*]}]}]", nil},
		"no level": {"matchingPrecedence: 2", []string{grouptest.Missing + "spec.priorityLevelConfiguration.name"}},
		"level": {"priorityLevelConfiguration: {name: A}",
			[]string{grouptest.Invalid + "spec.priorityLevelConfiguration.name"}},
		"precedence": {level + "matchingPrecedence: 10001", []string{grouptest.Invalid + "spec.matchingPrecedence"}},
		"negative":   {level + "matchingPrecedence: -1", []string{grouptest.Invalid + "spec.matchingPrecedence"}},
		"first":      {level + "matchingPrecedence: 1", []string{grouptest.Invalid + "spec.matchingPrecedence"}},
		"method": {level + "distinguisherMethod: {type: ByMoon}",
			[]string{grouptest.Unknown + "spec.distinguisherMethod.type"}},
		"nothing": {level + "rules: [{}]",
			[]string{grouptest.Missing + "spec.rules[0]", grouptest.Missing + at + "subjects"}},
		"kind": {
			level +
				"rules: [{subjects: [{kind: Robot, user: {name: a}}], nonResourceRules: [{verbs: [get], nonResourceURLs: [/]}]}]", []string{grouptest.Unknown + at + "subjects[0].kind"}},
		"other kind": {
			level +
				"rules: [{subjects: [{kind: User, group: {name: a}}], nonResourceRules: [{verbs: [get], nonResourceURLs: [/]}]}]", []string{grouptest.Missing + at + "subjects[0].user", grouptest.Forbidden + at + "subjects[0].group"}},
		"names": {
			level +
				"rules: [{subjects: [{kind: User, user: {}}, {kind: Group, group: {}}, {kind: ServiceAccount, serviceAccount: {}}, {kind: ServiceAccount, serviceAccount: {name: A, namespace: B}}], nonResourceRules: [{verbs: [get], nonResourceURLs: [/]}]}]", []string{grouptest.Missing + at + "subjects[0].user.name", grouptest.Missing + at + "subjects[1].group.name", grouptest.Missing + at + "subjects[2].serviceAccount.name", grouptest.Missing + at + "subjects[2].serviceAccount.namespace", grouptest.Invalid + at + "subjects[3].serviceAccount.name", grouptest.Invalid + at + "subjects[3].serviceAccount.namespace"}},
		"verbs": {
			level + rules +
				"nonResourceRules: [{nonResourceURLs: [/]}, {verbs: [fly], nonResourceURLs: [/]}, {verbs: ['*', get], nonResourceURLs: [/]}]}]", []string{grouptest.Missing + at + "nonResourceRules[0].verbs", grouptest.Unknown + at + "nonResourceRules[1].verbs", grouptest.Invalid + at + "nonResourceRules[2].verbs"}},
		"resources": {level + rules + "resourceRules: [{verbs: [get]}]}]",
			[]string{grouptest.Missing + at + "resourceRules[0].apiGroups",
				grouptest.Missing + at + "resourceRules[0].resources",
				grouptest.Missing + at + "resourceRules[0].namespaces"}},
		"wildcards": {
			level + rules +
				"resourceRules: [{verbs: [get], apiGroups: ['*', a], resources: ['*', a], namespaces: ['*', a]}]}]",
			[]string{grouptest.Invalid + at + "resourceRules[0].apiGroups",
				grouptest.Invalid + at + "resourceRules[0].resources",
				grouptest.Invalid + at + "resourceRules[0].namespaces"}},
		"namespace": {
			level + rules + "resourceRules: [{verbs: [get], apiGroups: [''], resources: [a], namespaces: [A]}]}]",
			[]string{grouptest.Invalid + at + "resourceRules[0].namespaces[0]"}},
		"no URLs": {level + urls + "[]}]}]",
			[]string{grouptest.Missing + at + "nonResourceRules[0].nonResourceURLs"}},
		"all URLs": {level + urls + "['*', /a]}]}]",
			[]string{grouptest.Invalid + at + "nonResourceRules[0].nonResourceURLs"}},
		"URLs": {level + urls + "['', a, '/a b', //, '/*/*', /a*]}]}]",
			[]string{grouptest.Invalid + at + "nonResourceRules[0].nonResourceURLs[0]",
				grouptest.Invalid + at + "nonResourceRules[0].nonResourceURLs[1]",
				grouptest.Invalid + at + "nonResourceRules[0].nonResourceURLs[2]",
				grouptest.Invalid + at + "nonResourceRules[0].nonResourceURLs[3]",
				grouptest.Invalid + at + "nonResourceRules[0].nonResourceURLs[4]",
				grouptest.Invalid + at + "nonResourceRules[0].nonResourceURLs[5]"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := grouptest.Parse[flowcontrolv1.FlowSchema](t, meta+"spec: {"+c.spec+"}")
			defaultFlowSchema(s)
			grouptest.WantErrors(t, validateFlowSchema(context.Background(), s, nil), c.want...)
			grouptest.WantErrors(t, validateFlowSchema(context.Background(), s, s), c.want...)
		})
	}
}

func TestFixedObjects(t *testing.T) {
	ctx := context.Background()
	for _, s := range append(bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas...) {
		s := s.DeepCopy()
		defaultFlowSchema(s)
		grouptest.WantErrors(t, validateFlowSchema(ctx, s, nil))
		if s.Name == flowcontrolv1.FlowSchemaNameCatchAll {
			s.Spec.MatchingPrecedence = 5
			grouptest.WantErrors(t, validateFlowSchema(ctx, s, nil), grouptest.Invalid+"spec")
		}
	}
	for _, l := range append(bootstrap.MandatoryPriorityLevelConfigurations,
		bootstrap.SuggestedPriorityLevelConfigurations...) {
		l := l.DeepCopy()
		defaultLevel(l)
		grouptest.WantErrors(t, validateLevel(ctx, l, nil))
		switch l.Name {
		case flowcontrolv1.PriorityLevelConfigurationNameExempt:
			l.Spec.Exempt.LendablePercent = ptr.To[int32](5)
			grouptest.WantErrors(t, validateLevel(ctx, l, nil))
		case flowcontrolv1.PriorityLevelConfigurationNameCatchAll:
			l.Spec.Limited.LendablePercent = ptr.To[int32](5)
			grouptest.WantErrors(t, validateLevel(ctx, l, nil), grouptest.Invalid+"spec")
		}
	}
}

func TestLevelDefaults(t *testing.T) {
	for in, want := range map[string]string{
		"{type: Limited, limited: {limitResponse: {type: Queue, queuing: {}}}}":       "{type: Limited, limited: {nominalConcurrencyShares: 30, lendablePercent: 0, limitResponse: {type: Queue, queuing: {queues: 64, handSize: 8, queueLengthLimit: 50}}}}",
		"{type: Limited, limited: {nominalConcurrencyShares: 0, lendablePercent: 5}}": "{type: Limited, limited: {nominalConcurrencyShares: 0, lendablePercent: 5}}",
		"{type: Exempt, exempt: {}}": "{type: Exempt, exempt: {nominalConcurrencyShares: 0, lendablePercent: 0}}",
	} {
		got := grouptest.Parse[flowcontrolv1.PriorityLevelConfiguration](t, "spec: "+in)
		defaultLevel(got)
		if diff := cmp.Diff(grouptest.Parse[flowcontrolv1.PriorityLevelConfiguration](t, "spec: "+want),
			got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", in, diff)
		}
	}
}

func TestValidateLevel(t *testing.T) {
	const queue, at = "type: Limited, limited: {limitResponse: {type: Queue, queuing: ", "spec.limited."
	for name, c := range map[string]struct {
		spec string
		want []string
	}{
		"queue":   {queue + "{}}}", nil},
		"reject":  {"type: Limited, limited: {limitResponse: {type: Reject}, borrowingLimitPercent: 200}", nil},
		"no type": {"", []string{grouptest.Missing + "spec.type"}},
		"type":    {"type: Free", []string{grouptest.Unknown + "spec.type"}},
		"not exempt": {"type: Exempt, limited: {}",
			[]string{grouptest.Invalid + "spec.type", grouptest.Forbidden + "spec.limited"}},
		"both": {"type: Limited, exempt: {}",
			[]string{grouptest.Forbidden + "spec.exempt", grouptest.Missing + "spec.limited"}},
		"numbers": {
			"type: Limited, limited: {nominalConcurrencyShares: -1, lendablePercent: 101, borrowingLimitPercent: -1, limitResponse: {type: Reject}}", []string{grouptest.Invalid + at + "nominalConcurrencyShares", grouptest.Invalid + at + "lendablePercent", grouptest.Invalid + at + "borrowingLimitPercent"}},
		"no response": {"type: Limited, limited: {}", []string{grouptest.Missing + at + "limitResponse.type"}},
		"response": {"type: Limited, limited: {limitResponse: {type: Wait}}",
			[]string{grouptest.Unknown + at + "limitResponse.type"}},
		"reject+": {"type: Limited, limited: {limitResponse: {type: Reject, queuing: {}}}",
			[]string{grouptest.Forbidden + at + "limitResponse.queuing"}},
		"wait+": {"type: Limited, limited: {limitResponse: {type: Wait, queuing: {}}}",
			[]string{grouptest.Unknown + at + "limitResponse.type",
				grouptest.Forbidden + at + "limitResponse.queuing"}},
		"some type": {"type: Some, limited: {}, exempt: {}",
			[]string{grouptest.Unknown + "spec.type", grouptest.Forbidden + "spec.limited",
				grouptest.Forbidden + "spec.exempt"}},
		"no queuing": {"type: Limited, limited: {limitResponse: {type: Queue}}",
			[]string{grouptest.Missing + at + "limitResponse.queuing"}},
		"queuing": {queue + "{queues: -1, handSize: -1, queueLengthLimit: -1}}}",
			[]string{grouptest.Invalid + at + "limitResponse.queuing.queues",
				grouptest.Invalid + at + "limitResponse.queuing.handSize",
				grouptest.Invalid + at + "limitResponse.queuing.queueLengthLimit"}},
		"hand": {queue + "{queues: 5, handSize: 6}}}",
			[]string{grouptest.Invalid + at + "limitResponse.queuing.handSize"}},
		"entropy": {queue + "{queues: 512, handSize: 8}}}",
			[]string{grouptest.Invalid + at + "limitResponse.queuing.handSize"}},
		"queues": {queue + "{queues: 10000001, handSize: 1}}}",
			[]string{grouptest.Invalid + at + "limitResponse.queuing.queues"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := grouptest.Parse[flowcontrolv1.PriorityLevelConfiguration](t, meta+"spec: {"+c.spec+"}")
			defaultLevel(l)
			grouptest.WantErrors(t, validateLevel(context.Background(), l, nil), c.want...)
			grouptest.WantErrors(t, validateLevel(context.Background(), l, l), c.want...)
		})
	}
	l := grouptest.Parse[flowcontrolv1.PriorityLevelConfiguration](t,
		"metadata: {name: x, annotations: {flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares: ''}}\nspec: {"+
			queue+"{}}}}")
	defaultLevel(l)
	grouptest.WantErrors(t, validateLevel(context.Background(), l, nil), grouptest.Forbidden+"metadata.annotations")
}

func TestStatusAndRows(t *testing.T) {
	ctx := context.Background()
	schemas := flowSchemas().(*resource.Kind[flowcontrolv1.FlowSchema])
	s := grouptest.Parse[flowcontrolv1.FlowSchema](t,
		meta+"spec: {matchingPrecedence: 5, priorityLevelConfiguration: {name: l}}")
	s.CreationTimestamp = grouptest.Ago(time.Minute)
	grouptest.WantRow(t, schemas, s, "x", "l", "5", "<none>", "60s", "?")
	update := s.DeepCopy()
	update.Labels = map[string]string{"a": "b"}
	update.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	update.Spec.DistinguisherMethod = &flowcontrolv1.FlowDistinguisherMethod{Type: "ByUser"}
	update.Status.Conditions = []flowcontrolv1.FlowSchemaCondition{{Type: "Dangling", Status: "True"}}
	schemas.Status.Prepare(ctx, update, s)
	if update.Labels != nil || len(update.ManagedFields) != 1 {
		t.Errorf("a write to the status changed the metadata to %+v", update.ObjectMeta)
	}
	grouptest.WantErrors(t, schemas.Status.Validate(ctx, update, s))
	grouptest.WantRow(t, schemas, update, "x", "l", "5", "ByUser", "60s", "True")
	update.Status.Conditions = []flowcontrolv1.FlowSchemaCondition{{}, {Type: "A"}, {Type: "A"}}
	grouptest.WantErrors(t, schemas.Status.Validate(ctx, update, s), grouptest.Missing+"status.conditions[0].type",
		grouptest.Duplicate+"status.conditions[2].type")

	levels := priorityLevels().(*resource.Kind[flowcontrolv1.PriorityLevelConfiguration])
	l := grouptest.Parse[flowcontrolv1.PriorityLevelConfiguration](t,
		meta+
			"spec: {type: Limited, limited: {limitResponse: {type: Queue, queuing: {}}}}\nstatus: {conditions: [{type: A}, {type: A}]}")
	defaultLevel(l)
	grouptest.WantErrors(t, levels.Status.Validate(ctx, l, l), grouptest.Duplicate+"status.conditions[1].type")
	grouptest.WantRow(t, levels, l, "x", "Limited", "30", "64", "8", "50", "<unknown>")
	grouptest.WantRow(t, levels,
		grouptest.Parse[flowcontrolv1.PriorityLevelConfiguration](t, meta+"spec: {type: Exempt}"), "x", "Exempt",
		"<none>", "<none>", "<none>", "<none>", "<unknown>")
}
