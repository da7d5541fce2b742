// Package clusterstatus says how the cluster does: it makes one status out of what servers know of
// themselves and of each other, warns of what needs a person, each with what mends it, and reads
// the diagnoses that the doctor has collected. It writes all of that for people, too.
//
// It is pure. Whoever calls it has asked the servers before, and hands over their words; so it
// works without a leader, with dead servers, and with the words of another version.
package clusterstatus
