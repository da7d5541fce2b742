// Package clusterstatus makes one status out of the servers' answers about themselves and each
// other. It warns of problems, each with the command that mends it, and reads the diagnoses that
// the doctor has collected. It writes all of that for people, too.
//
// It is pure. The caller has asked the servers before, and hands over their answers. So it works
// without a leader, with dead servers, and with answers of another version.
package clusterstatus
