"""Runs the cases of one module of CPython's test suite, and writes a line for each result.

Arguments: the file for results, the seconds that a case may take, the module, and cases to leave
out. Lines, with tabs between: `begin` and the case; then `ok`, `skip` or `fail` and the case, and
after `fail` the error; `end`. A case that takes longer ends the process, without a result.
"""
import faulthandler
import importlib
import sys
import unittest

from test import support

RESULTS = open(sys.argv[1], 'a', buffering=1)
SECONDS = float(sys.argv[2])
MODULE = sys.argv[3]
LEFT_OUT = set(sys.argv[4:])

# Modules that ask for a network, and use loopback. The caller's network namespace has nothing else.
ASK_FOR_NETWORK = ['test_socketserver']


class Results(unittest.TestResult):
    def line(self, result, test, error=None):
        words = [result, test.id()]
        if error is not None:
            lines = str(error[1]).strip().splitlines() or ['']
            words.append(error[0].__name__ + ': ' + lines[-1])
            print(test.id(), self._exc_info_to_string(error, test), file=sys.stderr)
        print('\t'.join(words), file=RESULTS)

    def startTest(self, test):
        super().startTest(test)
        self.line('begin', test)
        faulthandler.dump_traceback_later(SECONDS, exit=True)

    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        super().stopTest(test)

    def addSuccess(self, test):
        self.line('ok', test)

    def addSkip(self, test, reason):
        self.line('skip', test)

    def addExpectedFailure(self, test, error):
        self.line('ok', test)

    def addFailure(self, test, error):
        self.line('fail', test, error)

    def addError(self, test, error):
        self.line('fail', test, error)

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.line('fail', test, error)


def cases(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from cases(test)
        elif test.id() not in LEFT_OUT:
            yield test


support.use_resources = ['network'] if MODULE in ASK_FOR_NETWORK else []
support.verbose = 0
module = importlib.import_module('test.' + MODULE)
suite = unittest.defaultTestLoader.loadTestsFromModule(module)
unittest.TestSuite(cases(suite)).run(Results())
print('end', file=RESULTS)
RESULTS.close()
