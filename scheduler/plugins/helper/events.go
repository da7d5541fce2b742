package helper

import fwk "k8s.io/kube-scheduler/framework"

// Event is short for an event to register without a hint.
func Event(resource fwk.EventResource, action fwk.ActionType) fwk.ClusterEventWithHint {
	return fwk.ClusterEventWithHint{Event: fwk.ClusterEvent{Resource: resource, ActionType: action}}
}

// Hinted is short for an event that helps only when ok says so.
func Hinted(resource fwk.EventResource, action fwk.ActionType, hint fwk.QueueingHintFn) fwk.ClusterEventWithHint {
	e := Event(resource, action)
	e.QueueingHintFn = hint
	return e
}

// HintIf is the hint of an event that helps if ok.
func HintIf(ok bool) (fwk.QueueingHint, error) {
	if ok {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}
