package flowcontrol

import (
	"context"
	"fmt"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/util/shufflesharding"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

const (
	defaultShares      = 30
	defaultQueues      = 64
	defaultHandSize    = 8
	defaultQueueLength = 50
	mostQueues         = 10_000_000
	// zeroSharesAnnotation in an older version marks zero shares as meant.
	zeroSharesAnnotation = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares"
)

func priorityLevels() resource.Resource {
	return &resource.Kind[flowcontrolv1.PriorityLevelConfiguration]{
		GroupVersion:  version,
		Name:          "prioritylevelconfigurations",
		Singular:      "prioritylevelconfiguration",
		ClusterScoped: true,
		List:          &flowcontrolv1.PriorityLevelConfigurationList{},
		Generation:    true,
		Default:       defaultLevel,
		Validate:      validateLevel,
		Status: &resource.Status[flowcontrolv1.PriorityLevelConfiguration]{
			Prepare: func(_ context.Context, l, old *flowcontrolv1.PriorityLevelConfiguration) {
				keepMeta(&l.ObjectMeta, &old.ObjectMeta)
			},
			Validate: func(_ context.Context, l, _ *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
				return validateLevelStatus(l)
			},
			Reset: ofStatus(),
		},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Type", "string", "Whether requests of the level are limited."),
			resource.Column("NominalConcurrencyShares", "string", "The level's share of the server's concurrency."),
			resource.Column("Queues", "string", "How many queues the level has."),
			resource.Column("HandSize", "string", "How many queues a flow may use."),
			resource.Column("QueueLengthLimit", "string", "How many requests may wait in a queue."),
			resource.Age(),
		},
		Row: func(l *flowcontrolv1.PriorityLevelConfiguration, now time.Time) []any {
			const none = resource.None
			shares, queues, hand, length := none, none, none, none
			if limited := l.Spec.Limited; limited != nil {
				shares = fmt.Sprint(ptr.Deref(limited.NominalConcurrencyShares, 0))
				if q := limited.LimitResponse.Queuing; q != nil {
					queues, hand, length = fmt.Sprint(q.Queues), fmt.Sprint(q.HandSize), fmt.Sprint(q.QueueLengthLimit)
				}
			}
			return []any{l.Name, string(l.Spec.Type), shares, queues, hand, length,
				resource.Since(l.CreationTimestamp, now)}
		},
	}
}

func defaultLevel(l *flowcontrolv1.PriorityLevelConfiguration) {
	if limited := l.Spec.Limited; limited != nil {
		setDefault(&limited.NominalConcurrencyShares, defaultShares)
		setDefault(&limited.LendablePercent, 0)
		if q := limited.LimitResponse.Queuing; q != nil {
			for _, n := range []struct {
				value *int32
				or    int32
			}{{&q.HandSize, defaultHandSize}, {&q.Queues, defaultQueues}, {&q.QueueLengthLimit, defaultQueueLength}} {
				if *n.value == 0 {
					*n.value = n.or
				}
			}
		}
	}
	if exempt := l.Spec.Exempt; exempt != nil {
		setDefault(&exempt.NominalConcurrencyShares, 0)
		setDefault(&exempt.LendablePercent, 0)
	}
}

func setDefault(field **int32, value int32) {
	if *field == nil {
		*field = ptr.To(value)
	}
}

func validateLevel(_ context.Context, l, old *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
	errs := validation.Meta(l, old, false, validation.SubdomainName)
	if _, ok := l.Annotations[zeroSharesAnnotation]; ok {
		errs = append(errs,
			field.Forbidden(field.NewPath("metadata", "annotations"),
				fmt.Sprintf("annotation '%s' is forbidden", zeroSharesAnnotation)))
	}
	spec, at := &l.Spec, field.NewPath("spec")
	exempt := spec.Type == flowcontrolv1.PriorityLevelEnablementExempt
	if exempt != (l.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt) {
		errs = append(errs,
			field.Invalid(at.Child("type"), spec.Type, "must be 'Exempt' if and only if `name` is 'exempt'"))
	}
	limited := spec.Type == flowcontrolv1.PriorityLevelEnablementLimited
	if !exempt && !limited {
		errs = append(errs,
			validation.Enum(spec.Type, at.Child("type"), flowcontrolv1.PriorityLevelEnablementExempt,
				flowcontrolv1.PriorityLevelEnablementLimited)...)
	}
	if !limited && spec.Limited != nil {
		errs = append(errs, field.Forbidden(at.Child("limited"), "must be nil if the type is not Limited"))
	}
	if !exempt && spec.Exempt != nil {
		errs = append(errs, field.Forbidden(at.Child("exempt"), "must be nil if the type is Limited"))
	}
	if exempt && spec.Exempt != nil {
		errs = append(errs,
			validateShares(spec.Exempt.NominalConcurrencyShares, spec.Exempt.LendablePercent, at.Child("exempt"))...)
	}
	if limited {
		errs = append(errs, validateLimited(spec.Limited, at.Child("limited"))...)
	}
	errs = append(errs, validateFixedLevel(l, at)...)
	return append(errs, validateLevelStatus(l)...)
}

// validateFixedLevel refuses changes of the levels that every server has.
func validateFixedLevel(l *flowcontrolv1.PriorityLevelConfiguration, at *field.Path) field.ErrorList {
	for _, fixed := range bootstrap.MandatoryPriorityLevelConfigurations {
		if fixed.Name != l.Name {
			continue
		}
		want, but := fixed.DeepCopy(), ""
		defaultLevel(want)
		if l.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt {
			want.Spec.Exempt, but = l.Spec.Exempt, " except the 'spec.exempt' field"
		}
		if !apiequality.Semantic.DeepEqual(want.Spec, l.Spec) {
			return field.ErrorList{
				field.Invalid(at, l.Spec, fmt.Sprintf("spec of '%s'%s must equal the fixed value", l.Name, but))}
		}
	}
	return nil
}

func validateLevelStatus(l *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
	var types []flowcontrolv1.PriorityLevelConfigurationConditionType
	for _, c := range l.Status.Conditions {
		types = append(types, c.Type)
	}
	return validateTypes(types)
}

func validateShares(shares, lendable *int32, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if shares != nil && *shares < 0 {
		errs = append(errs,
			field.Invalid(at.Child("nominalConcurrencyShares"), *shares, "must be a non-negative integer"))
	}
	if lendable != nil && (*lendable < 0 || *lendable > 100) {
		errs = append(errs,
			field.Invalid(at.Child("lendablePercent"), *lendable, "must be between 0 and 100, inclusive"))
	}
	return errs
}

func validateLimited(l *flowcontrolv1.LimitedPriorityLevelConfiguration, at *field.Path) field.ErrorList {
	if l == nil {
		return field.ErrorList{field.Required(at, "must not be empty when type is Limited")}
	}
	errs := validateShares(l.NominalConcurrencyShares, l.LendablePercent, at)
	if b := l.BorrowingLimitPercent; b != nil && *b < 0 {
		errs = append(errs,
			field.Invalid(at.Child("borrowingLimitPercent"), *b, "if specified, must be a non-negative integer"))
	}
	at = at.Child("limitResponse")
	response, queuing := &l.LimitResponse, at.Child("queuing")
	if response.Type != flowcontrolv1.LimitResponseTypeQueue && response.Queuing != nil {
		errs = append(errs, field.Forbidden(queuing, "must be nil if limited.limitResponse.type is not Limited"))
	}
	switch {
	case response.Type == flowcontrolv1.LimitResponseTypeReject:
	case response.Type != flowcontrolv1.LimitResponseTypeQueue:
		errs = append(errs,
			validation.Enum(response.Type, at.Child("type"), flowcontrolv1.LimitResponseTypeQueue,
				flowcontrolv1.LimitResponseTypeReject)...)
	case response.Queuing == nil:
		errs = append(errs, field.Required(queuing, "must not be empty if limited.limitResponse.type is Limited"))
	default:
		errs = append(errs, validateQueuing(response.Queuing, queuing)...)
	}
	return errs
}

func validateQueuing(q *flowcontrolv1.QueuingConfiguration, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if q.QueueLengthLimit <= 0 {
		errs = append(errs, field.Invalid(at.Child("queueLengthLimit"), q.QueueLengthLimit, "must be positive"))
	}
	switch {
	case q.Queues <= 0:
		errs = append(errs, field.Invalid(at.Child("queues"), q.Queues, "must be positive"))
	case q.Queues > mostQueues:
		errs = append(errs,
			field.Invalid(at.Child("queues"), q.Queues, fmt.Sprintf("must not be greater than %d", mostQueues)))
	}
	hand := at.Child("handSize")
	switch {
	case q.HandSize <= 0:
		errs = append(errs, field.Invalid(hand, q.HandSize, "must be positive"))
	case q.HandSize > q.Queues:
		errs = append(errs,
			field.Invalid(hand, q.HandSize, fmt.Sprintf("should not be greater than queues (%d)", q.Queues)))
	case shufflesharding.RequiredEntropyBits(int(q.Queues), int(q.HandSize)) > shufflesharding.MaxHashBits:
		errs = append(errs,
			field.Invalid(hand, q.HandSize,
				fmt.Sprintf("required entropy bits of deckSize %d and handSize %d should not be greater than %d",
					q.Queues, q.HandSize, shufflesharding.MaxHashBits)))
	}
	return errs
}
